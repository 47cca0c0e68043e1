-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: settings of the server, as they are for this role and database. Any role may run it.
WITH leaves AS (
    -- Not by regclass: that needs the right to use the schema.
    SELECT count(*) FILTER (WHERE c.relname = 'intent') AS intents, count(*) FILTER (WHERE c.relname = 'outbox') AS outboxes
      FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhparent
     WHERE c.relnamespace = to_regnamespace('once')
), locks AS (
    -- What one attempt holds at most until its transaction ends, but for the elements of a batch: a plan locks every partition when
    -- it runs, and its indexes too when it is made, or made anew. The server's table has two such places for each connection and
    -- max_locks_per_transaction (the holders of a lock are counted, not the locks); half of them are left to the application.
    SELECT intents, 2 * intents + 4 * outboxes + 16 AS held, greatest(64, 2 * intents + 4 * outboxes) AS wanted,
           current_setting('max_locks_per_transaction')::int AS places, current_setting('max_connections')::int AS connections
      FROM leaves
), used AS (
    SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS allowed,
           (SELECT sum(d.numbackends) FROM pg_catalog.pg_stat_database AS d WHERE d.datid <> 0) AS taken
)
SELECT 'default isolation', CASE current_setting('default_transaction_isolation') WHEN 'read committed'
    THEN 'ok' ELSE 'warning' END,
       current_setting('default_transaction_isolation'),
       'correct, but under a higher level every race ends in 40001: retry the whole transaction, or set read committed for these roles'
UNION ALL
SELECT 'synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'warning' ELSE 'ok' END,
    current_setting('synchronous_commit'),
       'if it is off, a crash can lose outcomes that were already answered: set it on for the roles that finish and complete'
UNION ALL
SELECT 'fsync', CASE WHEN current_setting('fsync')::boolean AND current_setting('full_page_writes')::boolean
    THEN 'ok' ELSE 'warning' END,
       format('fsync %s, full_page_writes %s', current_setting('fsync'), current_setting('full_page_writes')),
       'if either is off, a crash of the machine can lose or damage outcomes: only for tests'
UNION ALL
SELECT 'max_locks_per_transaction', CASE WHEN places < wanted THEN 'warning' ELSE 'ok' END,
       format('%s, for %s partitions of intents: room for %s open attempts, each with up to %s locks', places, intents,
           2 * places * connections / held, held),
       format('more open attempts fail with 53200: set max_locks_per_transaction = %s, which needs a restart and is room for all %s '
           || 'connections; or keep fewer days: once.set_keeping(horizon_days => ...)', wanted, connections)
  FROM locks
UNION ALL
SELECT 'connections', CASE WHEN taken > 0.9 * allowed THEN 'warning' ELSE 'ok' END,
       format('%s of %s are taken', taken, allowed),
       'put a pooler in transaction mode before the server (PgBouncer), or raise max_connections: when all are taken, new ones are refused'
  FROM used
UNION ALL
SELECT 'autovacuum', CASE WHEN current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean
    THEN 'ok' ELSE 'warning' END,
       format('autovacuum %s, track_counts %s', current_setting('autovacuum'), current_setting('track_counts')),
       'set both on: leased intents are updated, and purged ones leave dead rows'
UNION ALL
SELECT 'idle in transaction timeout', CASE current_setting('idle_in_transaction_session_timeout') WHEN '0' THEN 'warning' ELSE 'ok' END,
       current_setting('idle_in_transaction_session_timeout'),
       'a client that hangs or vanishes in a transaction keeps its intent locked: ALTER ROLE app SET '
           || 'idle_in_transaction_session_timeout = ''1min'''
