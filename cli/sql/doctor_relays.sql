-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: relays and consumers. Reads tables of the contract, so only its owner can run it.
WITH relays AS (
    SELECT r.relay, r.written_by <> r.xmin AS foreign_cluster,
           EXISTS (SELECT FROM pg_catalog.pg_locks AS l
                    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
                      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
                      AND (l.classid::bigint << 32) | l.objid::bigint = once._relay_lock(r.relay))
               OR EXISTS (SELECT FROM once.capture AS c WHERE c.slot = r.relay) AS running
      FROM once.relay AS r
), undelivered AS (
    SELECT u.relay, sum(u.events) FILTER (WHERE u.state <> 'dead') AS waiting, sum(u.events) FILTER (WHERE u.state = 'dead') AS dead,
           extract(epoch FROM clock_timestamp() - min(u.oldest) FILTER (WHERE u.state <> 'dead')) AS oldest_s
      FROM once.outbox_summary() AS u GROUP BY u.relay
), messages AS (
    SELECT m.consumer, count(*) FILTER (WHERE m.state <> 'dead') AS waiting, count(*) FILTER (WHERE m.state = 'dead') AS dead,
           extract(epoch FROM clock_timestamp() - min(m.parked_at) FILTER (WHERE m.state <> 'dead')) AS oldest_s
      FROM once.parked_message AS m GROUP BY m.consumer
)
SELECT 'foreign relays', CASE count(*) WHEN 0 THEN 'ok' ELSE 'failed' END,
       coalesce(string_agg(relay, ', ' ORDER BY relay), 'none'),
       'after pg_repack of once.relay, or a dump restored into its own cluster, once.relay_adopt(relay, reason, xids_continue => true) '
           || 'continues where it was; after a restore from elsewhere xids_continue => false begins now, and once.parked_replay publishes '
           || 'the earlier events; once.drop_relay deletes it'
  FROM relays WHERE foreign_cluster
UNION ALL
SELECT 'relays running', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce('no process for ' || string_agg(relay, ', ' ORDER BY relay), 'all of them'),
       'start pgonce relay for it; a relay that is no longer needed keeps the outbox for ever: once.drop_relay(relay, reason)'
  FROM relays WHERE NOT running AND NOT foreign_cluster
UNION ALL
SELECT 'events without a relay', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(format('%s of topic %s, the oldest of %s', u.events, quote_literal(u.topic),
           to_char(u.oldest AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"')), '; ' ORDER BY u.oldest), 200), 'none'),
       'they will not be published, and are deleted with their day: start a relay with their topics, or once.add_capture for '
           || 'the slot that reads them'
  FROM once.outbox_untaken() AS u
UNION ALL
SELECT 'relays behind', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(format('%s: %s events, the oldest %s s old', relay, waiting, round(oldest_s)), '; ' ORDER BY oldest_s DESC),
           200), 'none'),
       'pgonce parked list shows the topics; the relay''s log shows the answers of its sink'
  FROM undelivered WHERE oldest_s > 300
UNION ALL
SELECT 'dead events', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(format('%s: %s', relay, dead), ', ' ORDER BY relay), 200), 'none'),
       'pgonce parked list --kind event --state dead; each keeps its aggregate waiting until pgonce parked retry or discard'
  FROM undelivered WHERE dead > 0
UNION ALL
SELECT 'messages behind', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(format('%s: %s messages, the oldest parked for %s s', consumer, waiting, round(oldest_s)), '; '
           ORDER BY oldest_s DESC), 200), 'none'),
       'pgonce parked list shows them and the reasons; check that pgonce consume runs'
  FROM messages WHERE oldest_s > 300
UNION ALL
SELECT 'dead messages', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(format('%s: %s', consumer, dead), ', ' ORDER BY consumer), 200), 'none'),
       'pgonce parked list --kind message --state dead; fix the cause, then pgonce parked retry or discard'
  FROM messages WHERE dead > 0
UNION ALL
SELECT 'relay flush', 'ok',
       CASE WHEN once._wal_told() THEN 'the server reports what is on disk'
       ELSE 'the server does not report what is on disk: a relay makes each batch durable by an additional commit' END, ''
