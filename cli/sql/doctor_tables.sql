-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: partitions, storage and vacuum. By the catalogs; once.setting says which days there must be, so only its owner can run it.
WITH span AS (
    SELECT floor(date_part('epoch', clock_timestamp()) / 86400)::int AS today, s.closed_before, s.horizon_days,
        s.days_ahead
      FROM once.setting AS s WHERE s.only_row
), wanted AS (
    SELECT 'intent' AS parent, day, day BETWEEN today AND today AS urgent
      FROM span, generate_series(greatest(closed_before, today - horizon_days), today + days_ahead) AS day
    UNION ALL
    SELECT 'outbox', day, day = today FROM span, generate_series(today, today + days_ahead) AS day
), missing AS (
    SELECT w.parent, w.day, w.urgent FROM wanted AS w
     WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
                        WHERE i.inhparent = ('once.' || w.parent)::regclass AND c.relname = w.parent || '_d' || w.day)
), leaves AS (
    SELECT c.relname, coalesce(c.reloptions, '{}') AS options, s.n_dead_tup, s.n_live_tup
      FROM pg_catalog.pg_inherits AS i
      JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
      LEFT JOIN pg_catalog.pg_stat_all_tables AS s ON s.relid = c.oid
     WHERE i.inhparent IN ('once.intent'::regclass, 'once.outbox'::regclass)
)
SELECT 'partitions', CASE WHEN bool_or(urgent) THEN 'fail' WHEN count(*) > 0 THEN 'warn' ELSE 'ok' END,
       coalesce(format('%s missing: ', count(*)) || left(string_agg(parent || '_d' || day, ', ' ORDER BY parent, day),
           150),
                (SELECT format('%s days ahead', days_ahead) FROM span)),
       'run the keeper (pgonce keep), or select once.add_days()'
  FROM missing
UNION ALL
SELECT 'fillfactor', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warn' END,
       coalesce('missing on ' || left(string_agg(relname, ', ' ORDER BY relname), 150), 'room for HOT updates'),
       'ALTER TABLE once.NAME SET (fillfactor = 75): completing a claim should stay on its page'
  FROM leaves WHERE relname LIKE 'intent\_d%' AND NOT EXISTS (SELECT FROM unnest(options) AS o
      WHERE o LIKE 'fillfactor=%')
UNION ALL
SELECT 'collation', CASE count(*) WHEN 0 THEN 'ok' ELSE 'fail' END,
       coalesce('not "C": ' || string_agg(a.attname, ', '), 'keys compare by bytes'),
       'restore the contract''s own table definitions: with another collation look-ups cannot use the primary key'
  FROM pg_catalog.pg_attribute AS a
 WHERE a.attrelid = 'once.intent'::regclass AND a.attname IN ('tenant', 'scope', 'key')
     AND a.attcollation <> 'pg_catalog."C"'::regcollation
UNION ALL
SELECT 'vacuum', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warn' END,
       coalesce(left(string_agg(CASE WHEN 'autovacuum_enabled=false' = ANY (options)
           OR 'autovacuum_enabled=off' = ANY (options)
                                     THEN relname || ': autovacuum off'
                                     ELSE format('%s: %s dead rows, %s live', relname, n_dead_tup, n_live_tup) END,
                                         '; ' ORDER BY relname), 200),
                'few dead rows'),
       'VACUUM these, and look for what holds it up: long transactions, abandoned replication slots, autovacuum settings'
  FROM leaves
 WHERE 'autovacuum_enabled=false' = ANY (options) OR 'autovacuum_enabled=off' = ANY (options)
     OR n_dead_tup > 10000 + 0.2 * n_live_tup
