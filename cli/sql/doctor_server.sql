-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: the server and its settings. $1: the client's clock, seconds since 1970.
-- Every doctor_*.sql gives rows of (what is looked at, ok|warn|fail, what was found, what to do).
SELECT 'server version',
       CASE WHEN current_setting('server_version_num')::int / 10000 BETWEEN 13 AND 18 THEN 'ok'
            WHEN current_setting('server_version_num')::int / 10000 > 18 THEN 'warn' ELSE 'fail' END,
       'PostgreSQL ' || current_setting('server_version'),
       'pgonce is tested with PostgreSQL 13 to 18'
UNION ALL
SELECT 'writable', CASE WHEN pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean
    THEN 'fail' ELSE 'ok' END,
       CASE WHEN pg_is_in_recovery() THEN 'a standby' WHEN current_setting('transaction_read_only')::boolean
           THEN 'read-only' ELSE 'yes' END,
       'connect to the primary (target_session_attrs=read-write), and see default_transaction_read_only'
UNION ALL
SELECT 'encoding', CASE current_setting('server_encoding') WHEN 'UTF8' THEN 'ok' ELSE 'warn' END,
    current_setting('server_encoding'),
       'use a database with ENCODING UTF8: messages and JSON are UTF-8'
UNION ALL
SELECT 'default isolation', CASE current_setting('default_transaction_isolation') WHEN 'read committed'
    THEN 'ok' ELSE 'warn' END,
       current_setting('default_transaction_isolation'),
       'right, but under a higher level every race ends in 40001: retry the whole transaction, or set read committed for these roles'
UNION ALL
SELECT 'synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'warn' ELSE 'ok' END,
    current_setting('synchronous_commit'),
       'with off a crash can lose outcomes that were already answered: set it on for the roles that finish and complete'
UNION ALL
SELECT 'fsync', CASE WHEN current_setting('fsync')::boolean AND current_setting('full_page_writes')::boolean
    THEN 'ok' ELSE 'warn' END,
       format('fsync %s, full_page_writes %s', current_setting('fsync'), current_setting('full_page_writes')),
       'with either off a crash of the machine can lose or damage outcomes: only for tests'
UNION ALL
SELECT 'max_locks_per_transaction', CASE WHEN current_setting('max_locks_per_transaction')::int < 64
    THEN 'warn' ELSE 'ok' END,
       current_setting('max_locks_per_transaction'),
       'a look-up locks each partition and its index: set at least 64'
UNION ALL
SELECT 'autovacuum', CASE WHEN current_setting('autovacuum')::boolean THEN 'ok' ELSE 'warn' END,
    current_setting('autovacuum'),
       'set autovacuum = on: leased intents are updated, and purged ones leave dead rows'
UNION ALL
SELECT 'clock', CASE WHEN abs(skew) > 300 THEN 'fail' WHEN abs(skew) > 30 THEN 'warn' ELSE 'ok' END,
       format('this machine is %s s %s the server', round(abs(skew)::numeric, 1), CASE WHEN skew < 0
           THEN 'behind' ELSE 'before' END),
       'set the clocks by NTP: UUIDv7 keys from more than once.setting.clock_skew in the future are refused'
  FROM (SELECT $1::float8 - extract(epoch FROM clock_timestamp())::float8 AS skew) AS clocks
