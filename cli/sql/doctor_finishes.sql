-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: whether started intents are finished, as far as the server counts calls (track_functions). A start without a finish is an
-- attempt that was answered from a stored outcome, or refused, or rolled back, or one whose finish was forgotten.
WITH called AS (
    SELECT coalesce(sum(f.calls) FILTER (WHERE f.funcname IN ('start', 'try_start')), 0) AS starts,
           coalesce(sum(f.calls) FILTER (WHERE f.funcname = 'finish'), 0) AS finishes
      FROM pg_stat_user_functions AS f WHERE f.schemaname = 'once'
), answered AS (
    SELECT coalesce(sum(c.count), 0) AS times FROM once.counts() AS c
     WHERE c.verdict IN ('replay', 'mismatch', 'active', 'final', 'in_doubt', 'expired')
), compared AS (
    SELECT c.starts, greatest(0, c.starts - c.finishes - a.times) AS without,
           current_setting('track_functions') <> 'none' AS counting,
           CASE WHEN EXISTS (SELECT FROM pg_extension AS e WHERE e.extname = 'pgonce_native') THEN 'pgonce_native is there'
                WHEN lower(current_setting('once.strict', true)) IN ('on', 'true', 'yes', '1') THEN 'once.strict is on' END AS strict
      FROM called AS c, answered AS a
)
SELECT 'forgotten finishes',
       CASE WHEN without >= 10 AND without * 2 > starts THEN 'warning' WHEN counting OR strict IS NOT NULL THEN 'ok' ELSE 'skipped' END,
       CASE WHEN without >= 10 AND without * 2 > starts
            THEN format('%s of %s starts had neither an answer nor a finish', without, starts)
            WHEN strict IS NOT NULL THEN strict || ': such a COMMIT fails'
            WHEN counting THEN format('%s starts, %s of them without an answer or a finish', starts, without)
            ELSE 'track_functions is none: the server does not count calls' END,
       CASE WHEN counting OR without >= 10
            THEN 'each was rolled back, or committed its effect without a trace: set once.strict = on, and such a COMMIT fails (P4013)'
            ELSE 'set track_functions = pl for a while, or once.strict = on: then a COMMIT without its finish fails (P4013)' END
  FROM compared
