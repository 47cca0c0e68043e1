-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: the server. $1: the client's clock, seconds since 1970.
-- Every doctor_*.sql returns rows of (check, ok|warning|failed|skipped, finding, remedy). One file per kind of objects that a role must
-- be allowed to read: if it may not, the checks of the whole file are skipped.
SELECT 'server version',
       CASE WHEN current_setting('server_version_num')::int / 10000 BETWEEN 13 AND 18 THEN 'ok'
            WHEN current_setting('server_version_num')::int / 10000 > 18 THEN 'warning' ELSE 'failed' END,
       'PostgreSQL ' || current_setting('server_version'),
       'pgonce is tested with PostgreSQL 13 to 18'
UNION ALL
SELECT 'writable', CASE WHEN pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean
    THEN 'failed' ELSE 'ok' END,
       CASE WHEN pg_is_in_recovery() THEN 'a standby' WHEN current_setting('transaction_read_only')::boolean
           THEN 'read-only' ELSE 'yes' END,
       'connect to the primary (target_session_attrs=read-write), and check default_transaction_read_only'
UNION ALL
SELECT 'encoding', CASE current_setting('server_encoding') WHEN 'UTF8' THEN 'ok' ELSE 'warning' END,
    current_setting('server_encoding'),
       'use a database with ENCODING UTF8: messages and JSON are UTF-8'
UNION ALL
SELECT 'clock', CASE WHEN abs(skew) > 300 THEN 'failed' WHEN abs(skew) > 30 THEN 'warning' ELSE 'ok' END,
       format('this machine is %s s %s the server', round(abs(skew)::numeric, 1), CASE WHEN skew < 0
           THEN 'behind' ELSE 'before' END),
       'synchronise the clocks with NTP: UUIDv7 keys from more than once.setting.clock_skew in the future are refused'
  FROM (SELECT $1::float8 - extract(epoch FROM clock_timestamp())::float8 AS skew) AS clocks
