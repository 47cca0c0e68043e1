-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: how far the copy is: tables that are not complete, workers, errors so far, rows that are being copied.
SELECT (SELECT count(*) FROM pg_subscription_rel AS r WHERE r.srsubid = s.oid AND r.srsubstate <> 'r') AS incomplete,
       (SELECT count(*) FROM pg_stat_subscription AS w WHERE w.subid = s.oid AND w.pid IS NOT NULL) AS workers,
       coalesce((SELECT e.apply_error_count + e.sync_error_count FROM pg_stat_subscription_stats AS e WHERE e.subid = s.oid), 0) AS errors,
       coalesce((SELECT sum(c.tuples_processed) FROM pg_stat_progress_copy AS c JOIN pg_stat_subscription AS w ON w.pid = c.pid
                  WHERE w.subid = s.oid), 0) AS rows
  FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid
 WHERE s.subname = 'pgonce_rehome' AND d.datname = current_database()
