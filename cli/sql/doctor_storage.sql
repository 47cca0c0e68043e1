-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: partitions and indexes as they are stored. By the catalogs alone, so any role can run it.
WITH parents AS (
    -- Not by regclass: that needs the right to use the schema.
    SELECT c.oid, c.relname FROM pg_catalog.pg_class AS c
     WHERE c.relnamespace = to_regnamespace('once') AND c.relname IN ('intent', 'outbox', 'archive') AND c.relkind = 'p'
), leaves AS (
    -- inhdetachpending is of PostgreSQL 14 and later.
    SELECT c.oid, c.relname, coalesce(c.reloptions, '{}') AS options, s.n_dead_tup, s.n_live_tup,
           coalesce((to_jsonb(i) ->> 'inhdetachpending')::boolean, false) AS detaching
      FROM pg_catalog.pg_inherits AS i
      JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
      LEFT JOIN pg_catalog.pg_stat_all_tables AS s ON s.relid = c.oid
     WHERE i.inhparent IN (SELECT p.oid FROM parents AS p)
), intents AS (
    SELECT l.* FROM leaves AS l WHERE l.relname LIKE E'intent\\_d%'
), stored AS (
    SELECT c.oid, c.relname, c.relreplident, c.relrowsecurity, c.relforcerowsecurity
      FROM pg_catalog.pg_class AS c WHERE c.relnamespace = to_regnamespace('once') AND c.relkind IN ('r', 'p')
), broken AS (
    SELECT format('%s on %s', x.indexrelid::regclass, x.indrelid::regclass) AS name
      FROM pg_catalog.pg_index AS x JOIN pg_catalog.pg_class AS c ON c.oid = x.indrelid
     WHERE c.relnamespace = to_regnamespace('once') AND c.relkind = 'r' AND NOT (x.indisvalid AND x.indisready AND x.indislive)
)
SELECT 'collation', CASE count(*) WHEN 0 THEN 'ok' ELSE 'failed' END,
       coalesce('not "C": ' || left(string_agg(format('%s.%s', a.attrelid::regclass, a.attname), ', ' ORDER BY a.attrelid, a.attnum), 150),
           'keys compare by bytes'),
       'restore the contract''s own table definitions: with another collation look-ups cannot use the primary key'
  FROM pg_catalog.pg_attribute AS a
 WHERE (a.attrelid IN (SELECT p.oid FROM parents AS p WHERE p.relname <> 'outbox')
        OR a.attrelid IN (SELECT l.oid FROM intents AS l))
   AND a.attname IN ('tenant', 'scope', 'key') AND a.attcollation <> 'pg_catalog."C"'::regcollation
UNION ALL
SELECT 'fillfactor', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce('missing on ' || left(string_agg(relname, ', ' ORDER BY relname), 150), 'room for HOT updates'),
       'ALTER TABLE once.NAME SET (fillfactor = 50): completing a claim should stay on its page'
  FROM intents WHERE NOT EXISTS (SELECT FROM unnest(options) AS o WHERE o LIKE 'fillfactor=%')
UNION ALL
SELECT 'autovacuum of partitions', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce('off for ' || left(string_agg(relname, ', ' ORDER BY relname), 150), 'on for all'),
       'ALTER TABLE once.NAME RESET (autovacuum_enabled)'
  FROM leaves WHERE EXISTS (SELECT FROM unnest(options) AS o WHERE o ~ '^autovacuum_enabled=(false|off|no|0)$')
UNION ALL
SELECT 'dead rows', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(format('%s: %s dead, %s live', relname, n_dead_tup, n_live_tup), '; ' ORDER BY n_dead_tup DESC), 200),
           'few'),
       'VACUUM these, and find what holds it up: long transactions, abandoned replication slots, autovacuum settings'
  FROM leaves WHERE n_dead_tup > 10000 + 0.2 * n_live_tup
UNION ALL
SELECT 'invalid indexes', CASE count(*) WHEN 0 THEN 'ok' ELSE 'failed' END,
       coalesce(left(string_agg(name, ', ' ORDER BY name), 200), 'none'),
       'REINDEX INDEX CONCURRENTLY NAME, or drop the index that a failed REINDEX or CREATE INDEX left (its name ends in _ccnew or _ccold)'
  FROM broken
UNION ALL
SELECT 'primary keys', CASE count(*) WHEN 0 THEN 'ok' ELSE 'failed' END,
       coalesce('missing on ' || left(string_agg(relname, ', ' ORDER BY relname), 150), 'on every partition of intents'),
       'stop all callers: without it one key can have two intents. Find the duplicates, then ALTER TABLE once.NAME ADD PRIMARY KEY (scope, '
           || 'key, tenant, bucket)'
  FROM intents AS l
 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_index AS x
                    WHERE x.indrelid = l.oid AND x.indisprimary AND x.indisvalid)
UNION ALL
SELECT 'pending detach', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(relname, ', ' ORDER BY relname), 150), 'none'),
       'a DETACH CONCURRENTLY was interrupted: the keeper ends it; by hand: ALTER TABLE once.intent DETACH PARTITION once.NAME FINALIZE'
  FROM leaves WHERE detaching
UNION ALL
-- The functions run as the owner, and row security applies to the owner only if it is forced.
SELECT 'row security', CASE WHEN count(*) = 0 THEN 'ok' WHEN bool_or(relforcerowsecurity) THEN 'failed' ELSE 'warning' END,
       coalesce('on for ' || left(string_agg(relname, ', ' ORDER BY relname), 150), 'off: the functions decide who sees what'),
       'ALTER TABLE once.NAME NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY: it hides rows from the functions themselves, which '
           || 'then fail or decide wrongly. To keep tenants apart use once.bind'
  FROM stored WHERE relrowsecurity
UNION ALL
SELECT 'replica identity', CASE count(*) WHEN 0 THEN 'ok' ELSE 'failed' END,
       coalesce('none for ' || left(string_agg(relname, ', ' ORDER BY relname), 150), 'every table has one'),
       'ALTER TABLE once.NAME REPLICA IDENTITY FULL: once it is published (FOR ALL TABLES), updates and deletes of its rows fail'
  FROM stored AS t
 WHERE CASE t.relreplident WHEN 'n' THEN true
            WHEN 'i' THEN NOT EXISTS (SELECT FROM pg_catalog.pg_index AS x WHERE x.indrelid = t.oid AND x.indisreplident)
            WHEN 'd' THEN NOT EXISTS (SELECT FROM pg_catalog.pg_index AS x WHERE x.indrelid = t.oid AND x.indisprimary) END
   AND EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.oid = t.oid AND c.relkind = 'r')
