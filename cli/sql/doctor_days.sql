-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: the days that there must be. once.setting says which, so only the contract's owner can run it.
WITH span AS (
    SELECT floor(date_part('epoch', clock_timestamp()) / 86400)::int AS today, s.closed_before, s.horizon_days,
        s.days_ahead
      FROM once.setting AS s WHERE s.only_row
), wanted AS (
    SELECT 'intent' AS parent, day, day = today AS urgent
      FROM span, generate_series(greatest(closed_before, today - horizon_days), today + days_ahead) AS day
    UNION ALL
    SELECT 'intent', 0, true
    UNION ALL
    SELECT 'outbox', day, day = today FROM span, generate_series(today, today + days_ahead) AS day
), present AS (
    SELECT i.inhparent, c.relname FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
     WHERE i.inhparent IN ('once.intent'::regclass, 'once.outbox'::regclass)
), missing AS (
    SELECT w.parent, w.day, w.urgent FROM wanted AS w
     WHERE NOT EXISTS (SELECT FROM present AS p WHERE p.relname = w.parent || '_d' || w.day)
), ahead AS (
    SELECT w.parent, coalesce(min(w.day) FILTER (WHERE NOT EXISTS (SELECT FROM present AS p
               WHERE p.relname = w.parent || '_d' || w.day)) - today - 1, days_ahead) AS days
      FROM span, wanted AS w WHERE w.day > today GROUP BY w.parent, today, days_ahead
)
SELECT 'partitions', CASE WHEN bool_or(urgent) THEN 'failed' WHEN count(*) > 0 THEN 'warning' ELSE 'ok' END,
       coalesce(format('%s missing: ', count(*)) || left(string_agg(parent || '_d' || day, ', ' ORDER BY parent, day), 150), 'all there'),
       CASE WHEN bool_or(day = 0) THEN 'intent_d0, where the intents are whose keys are no UUIDv7, was dropped with'
           || ' all of them, and is not made anew: restore the database' ELSE 'run the keeper (pgonce keep), or select once.add_days()' END
  FROM missing
UNION ALL
SELECT 'days ahead', CASE WHEN min(days) < 1 THEN 'failed' WHEN min(days) < least(2, (SELECT days_ahead FROM span)) THEN 'warning'
    ELSE 'ok' END,
       format('%s of %s', min(days), (SELECT days_ahead FROM span)),
       'at midnight UTC calls of a day without a partition fail with P4098: run the keeper (pgonce keep), or select once.add_days()'
  FROM ahead
