-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: what holds back vacuum, or WAL. $1: how many seconds a transaction may be open; $2: how many transactions a slot
-- or a standby may hold back. Any role may run it, but sees others' sessions only with pg_read_all_stats (pg_monitor has it).
WITH sight AS (
    SELECT pg_has_role('pg_read_all_stats', 'usage') AS clear
), sessions AS (
    SELECT a.pid, a.usename, a.state, extract(epoch FROM clock_timestamp() - a.xact_start) AS open_s,
           extract(epoch FROM clock_timestamp() - a.state_change) AS idle_s
      FROM pg_catalog.pg_stat_activity AS a
     WHERE a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
), prepared AS (
    SELECT p.gid, extract(epoch FROM clock_timestamp() - p.prepared) AS open_s FROM pg_catalog.pg_prepared_xacts AS p
), slots AS (
    -- Not in bytes: a managed server may hide its own WAL position.
    SELECT s.slot_name, s.active, greatest(age(s.xmin), age(s.catalog_xmin)) AS xids, s.restart_lsn, s.wal_status
      FROM pg_catalog.pg_replication_slots AS s
     WHERE NOT s.temporary
), standbys AS (
    SELECT r.application_name, age(r.backend_xmin) AS xids FROM pg_catalog.pg_stat_replication AS r WHERE r.backend_xmin IS NOT NULL
), ages AS (
    SELECT d.datname, age(d.datfrozenxid) AS xids, mxid_age(d.datminmxid) AS mxids FROM pg_catalog.pg_database AS d
     WHERE d.datallowconn
)
SELECT 'long transactions', CASE WHEN count(pid) > 0 THEN 'warning' WHEN clear THEN 'ok' ELSE 'skipped' END,
       coalesce(format('%s open, the oldest for %s s: ', count(pid), round(max(open_s)))
           || left(string_agg(format('pid %s (%s, %s)', pid, usename, state), ', ' ORDER BY open_s DESC)
               FILTER (WHERE pid IS NOT NULL), 150),
           CASE WHEN clear THEN 'none'
           ELSE 'this role sees only its own sessions' END),
       CASE WHEN clear THEN 'no dead row that they might see can be removed, and no outbox day dropped: end them, if necessary with select '
           || 'pg_terminate_backend(PID)' ELSE 'GRANT pg_monitor to the role that runs pgonce doctor' END
  FROM sight LEFT JOIN sessions ON open_s > $1::float8
 GROUP BY clear
UNION ALL
SELECT 'idle in transaction', CASE WHEN count(pid) > 0 THEN 'warning' WHEN clear THEN 'ok' ELSE 'skipped' END,
       coalesce(format('%s, the longest for %s s: ', count(pid), round(max(idle_s)))
           || left(string_agg(format('pid %s (%s)', pid, usename), ', ' ORDER BY idle_s DESC) FILTER (WHERE pid IS NOT NULL), 150),
           CASE WHEN clear THEN 'none' ELSE 'this role sees only its own sessions' END),
       CASE WHEN clear THEN 'each may keep an intent locked: find out what the client waits for, and set '
           || 'idle_in_transaction_session_timeout' ELSE 'GRANT pg_monitor to the role that runs pgonce doctor' END
  FROM sight LEFT JOIN sessions ON state LIKE 'idle in transaction%' AND idle_s > least($1::float8, 60)
 GROUP BY clear
UNION ALL
SELECT 'prepared transactions', CASE count(gid) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(format('%s, the oldest for %s s: ', count(gid), round(max(open_s)))
           || left(string_agg(gid, ', ' ORDER BY open_s DESC), 150),
           'none is left behind'),
       'each keeps its locks and holds back vacuum until COMMIT PREPARED or ROLLBACK PREPARED, even after a restart'
  FROM prepared WHERE open_s > $1::float8
UNION ALL
SELECT 'replication slots', CASE count(slot_name) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(format('%s (%s, WAL %s, %s transactions)', slot_name, CASE WHEN active THEN 'active'
           ELSE 'not active' END, coalesce(wal_status, 'none'), coalesce(xids, 0)), ', ' ORDER BY slot_name), 250),
           'none holds anything back'),
       'a slot without a reader fills the disk and holds back vacuum: start its reader, or select pg_drop_replication_slot(NAME)'
  FROM slots WHERE (NOT active AND (restart_lsn IS NOT NULL OR xids IS NOT NULL)) OR xids > $2::bigint
UNION ALL
SELECT 'standby feedback', CASE count(xids) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(format('%s holds back %s transactions', application_name, xids), ', ' ORDER BY xids DESC), 200),
           'no standby holds back vacuum'),
       'a long query on a standby with hot_standby_feedback keeps dead rows here: end it, or set max_standby_streaming_delay instead'
  FROM standbys WHERE xids > $2::bigint
UNION ALL
SELECT 'wraparound', CASE WHEN max(greatest(xids, mxids)) > 1500000000 THEN 'failed'
            WHEN bool_or(xids > 1.5 * current_setting('autovacuum_freeze_max_age')::bigint
                OR mxids > 1.5 * current_setting('autovacuum_multixact_freeze_max_age')::bigint) THEN 'warning' ELSE 'ok' END,
       format('the oldest transaction id is %s transactions old', max(xids)),
       'vacuum does not keep up, and at 2 billion the server stops writing: find what holds it back (the checks above), then VACUUM'
  FROM ages
