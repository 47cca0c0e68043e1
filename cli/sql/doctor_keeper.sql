-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: the keeper. By functions that once_reader and once_keeper may call.
WITH status AS (
    SELECT s.step, s.ord, s.last_started, s.last_success, s.last_error, s.last_error_at,
           coalesce(s.last_error_at > coalesce(s.last_success, '-infinity'), false) AS failing
      FROM once.keeper_status() AS s
), lease AS (
    SELECT max(l.keeper) AS keeper, max(l.lease_until) AS lease_until, max(l.last_round) AS last_round FROM once.keeper_lease() AS l
), held AS (
    SELECT h.what, h.name, h.since, h.hint FROM once.retention_held() AS h
)
-- A keeper by pg_cron or --once holds no lease between its rounds: the time of its last complete round counts.
SELECT 'keeper', CASE WHEN max(s.last_success) IS NULL AND lease.keeper IS NULL THEN 'warning'
            WHEN max(s.last_success) < clock_timestamp() - interval '1 day' THEN 'failed'
            WHEN coalesce(max(s.last_success), '-infinity') < clock_timestamp() - interval '1 hour'
                AND lease.lease_until < clock_timestamp()
                THEN 'warning' ELSE 'ok' END,
       CASE WHEN max(s.last_success) IS NULL AND lease.keeper IS NULL THEN 'none ever ran here'
            ELSE format('%s, last done %s', coalesce(lease.keeper, 'no keeper'), coalesce(to_char(max(s.last_success) AT TIME ZONE 'UTC',
                'YYYY-MM-DD HH24:MI:SS "UTC"'), 'never')) END,
       'start pgonce keep (or schedule CALL once.keep() with pg_cron): without it no day is retired, and no stale intent is recovered'
  FROM lease LEFT JOIN status AS s ON true
 GROUP BY lease.keeper, lease.lease_until
UNION ALL
SELECT 'keeper steps', CASE count(*) WHEN 0 THEN 'ok' ELSE 'failed' END,
       coalesce(left(string_agg(format('%s: %s', step, last_error), '; ' ORDER BY ord), 250), 'none is failing'),
       'the message gives the cause; the keeper tries again each round'
  FROM status WHERE failing
UNION ALL
SELECT 'keeper clock', CASE WHEN count(*) = 0 THEN 'ok' WHEN count(since) = 0 THEN 'skipped' ELSE 'warning' END,
       coalesce(left(string_agg(hint, ' '), 250), 'steady'),
       'the server''s clock jumped: nothing is deleted until it has been steady for once.setting.clock_settle. Check its NTP'
  FROM held WHERE what = 'clock'
UNION ALL
SELECT 'retention held', CASE WHEN count(*) > 0 THEN 'warning'
            WHEN EXISTS (SELECT FROM held AS h WHERE h.what = 'clock' AND h.since IS NULL) THEN 'skipped' ELSE 'ok' END,
       coalesce(left(string_agg(what || ' ' || name
           || coalesce(' since ' || to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI'), ''), '; '
           ORDER BY since), 250), (SELECT 'by the clock alone: ' || h.hint FROM held AS h WHERE h.what = 'clock'), 'by nothing'),
       coalesce(left(string_agg(DISTINCT hint, ' '), 250), 'the named ones hold it: nothing is deleted that may be redelivered')
  FROM held WHERE what <> 'clock' AND (since < clock_timestamp() - interval '1 hour' OR what = 'move')
