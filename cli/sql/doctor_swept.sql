-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: stale and doubtful intents, from the keeper's last count. Reads tables of the contract: for its owner.
WITH swept AS (
    SELECT s.scope, s.stale, s.in_doubt, s.oldest_stale FROM once.swept AS s
), pass AS (
    SELECT greatest(max(s.as_of), (SELECT k.ended_at FROM once.keeper_step AS k WHERE k.step = 'sweep')) AS at
      FROM once.swept AS s
), words AS (
    SELECT coalesce('none at ' || to_char(p.at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'),
                    'no keeper has counted them yet') AS none,
           CASE WHEN p.at IS NULL THEN 'skipped' ELSE 'ok' END AS level FROM pass AS p
)
SELECT 'stale intents', CASE WHEN sum(s.stale) FILTER (WHERE s.oldest_stale < clock_timestamp() - interval '1 hour') > 0
    THEN 'warning' ELSE w.level END,
       coalesce(left(string_agg(format('%s: %s, the oldest since %s', quote_literal(s.scope), s.stale, to_char(s.oldest_stale
           AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')), '; ' ORDER BY s.oldest_stale) FILTER (WHERE s.stale > 0), 200), w.none),
       CASE WHEN w.level = 'skipped' THEN 'start pgonce keep, which counts them; pgonce stuck looks for them now'
            ELSE 'pgonce stuck lists them: their attempts ended without a report, and there was no retry. '
                || 'pgonce recover asks the scope''s verify function' END
  FROM words AS w LEFT JOIN swept AS s ON true GROUP BY w.none, w.level
UNION ALL
SELECT 'in doubt', CASE WHEN sum(s.in_doubt) > 0 THEN 'warning' ELSE w.level END,
       coalesce(left(string_agg(format('%s: %s', quote_literal(s.scope), s.in_doubt), ', ' ORDER BY s.in_doubt DESC)
           FILTER (WHERE s.in_doubt > 0), 200), w.none),
       CASE WHEN w.level = 'skipped' THEN 'start pgonce keep, which counts them; pgonce in-doubt looks for them now'
            ELSE 'pgonce in-doubt lists them: find out what happened, then pgonce resolve. They do not run until then' END
  FROM words AS w LEFT JOIN swept AS s ON true GROUP BY w.none, w.level
