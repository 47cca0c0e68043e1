-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: the required days. once.setting defines them, so only the contract's owner can run it.
WITH span AS (
    SELECT floor(date_part('epoch', clock_timestamp()) / 86400)::int AS today, s.closed_before, s.horizon_days,
        s.days_ahead
      FROM once.setting AS s WHERE s.only_row
), wanted AS (
    SELECT 'intent' AS parent, day
      FROM span, generate_series(greatest(closed_before, today - horizon_days), today + days_ahead) AS day
    UNION ALL
    SELECT 'intent', 0
    UNION ALL
    SELECT 'outbox', day FROM span, generate_series(today, today + days_ahead) AS day
), present AS (
    SELECT i.inhparent, c.relname FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
     WHERE i.inhparent IN ('once.intent'::regclass, 'once.outbox'::regclass)
), missing AS (
    SELECT w.parent, w.day FROM wanted AS w
     WHERE w.day <= (SELECT today + 1 FROM span) AND NOT EXISTS (SELECT FROM present AS p WHERE p.relname = w.parent || '_d' || w.day)
), ahead AS (
    SELECT w.parent, coalesce(min(w.day) FILTER (WHERE NOT EXISTS (SELECT FROM present AS p
               WHERE p.relname = w.parent || '_d' || w.day)) - today - 1, days_ahead) AS days
      FROM span, wanted AS w WHERE w.day > today GROUP BY w.parent, today, days_ahead
)
SELECT 'partitions', CASE WHEN bool_or(day = 0) THEN 'failed' WHEN count(*) > 0 THEN 'warning' ELSE 'ok' END,
       coalesce(format('%s missing: ', count(*)) || left(string_agg(parent || '_d' || day, ', ' ORDER BY parent, day), 150), 'all there'),
       CASE WHEN bool_or(day = 0) THEN 'intent_d0, the partition of all keys that are not UUIDv7, was dropped with'
           || ' its intents, and is not created again: restore the database'
           ELSE 'the first call that needs one creates it, and so does the keeper' END
  FROM missing
UNION ALL
SELECT 'days ahead', CASE WHEN min(days) >= 1 THEN 'ok' WHEN max(t.at) > clock_timestamp() - interval '1 hour' THEN 'failed'
           ELSE 'warning' END,
       format('%s of %s', min(days), (SELECT days_ahead FROM span))
           || CASE WHEN min(days) < 1 THEN coalesce(format(', and calls could not create one at %s', max(t.at)), '') ELSE '' END,
       'the first call of a day creates the next day; else calls fail with P4098 after midnight UTC. select once.add_days() tells'
           || ' why: an event trigger that forbids DDL, or another transaction''s lock'
  FROM ahead, (SELECT to_timestamp(pg_sequence_last_value('once.days_failed_seq'))) AS t (at)
