-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: the stale and the doubtful, as the keeper counted them last. Reads a table of the contract: for its owner.
SELECT 'stale intents', CASE WHEN sum(s.stale) FILTER (WHERE s.oldest_stale < clock_timestamp() - interval '1 hour') > 0
    THEN 'warning' ELSE 'ok' END,
       coalesce(left(string_agg(format('%s: %s, the oldest since %s', quote_literal(s.scope), s.stale, to_char(s.oldest_stale
           AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')), '; ' ORDER BY s.oldest_stale) FILTER (WHERE s.stale > 0), 200), 'none'),
       'pgonce stuck lists them: their attempts ended without a report, and nobody has retried. '
           || 'pgonce recover asks the scope''s verify function'
  FROM once.swept AS s
UNION ALL
SELECT 'in doubt', CASE WHEN sum(s.in_doubt) > 0 THEN 'warning' ELSE 'ok' END,
       coalesce(left(string_agg(format('%s: %s', quote_literal(s.scope), s.in_doubt), ', ' ORDER BY s.in_doubt DESC)
           FILTER (WHERE s.in_doubt > 0), 200), 'none'),
       'pgonce in-doubt lists them: find out what happened, then pgonce resolve. Nobody runs them until then'
  FROM once.swept AS s
