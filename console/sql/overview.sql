-- SPDX-License-Identifier: PostgreSQL
-- The page /: what runs, what waits, and whether the keeper keeps up. Reads figures, and no intents but the newest (latency).
WITH metric AS MATERIALIZED (
    SELECT m.name, m.labels, m.value FROM once.metrics() AS m
), swept AS MATERIALIZED (
    SELECT s.scope, s.stale, s.in_doubt, s.oldest_stale, s.as_of,
           floor(1000 * extract(epoch FROM clock_timestamp() - s.oldest_stale))::bigint AS oldest_stale_ms,
           floor(1000 * extract(epoch FROM clock_timestamp() - s.as_of))::bigint AS as_of_ms
      FROM once.scope_list() AS s WHERE s.as_of IS NOT NULL
), relay AS MATERIALIZED (
    SELECT m.labels->>'relay' AS relay, coalesce(m.labels->>'topic', '') AS topic,
           sum(m.value) FILTER (WHERE m.name = 'pgonce_outbox_pending') AS pending,
           sum(m.value) FILTER (WHERE m.name = 'pgonce_outbox_parked' AND m.labels->>'state' <> 'dead') AS parked,
           sum(m.value) FILTER (WHERE m.name = 'pgonce_outbox_parked' AND m.labels->>'state' = 'dead') AS dead,
           max(m.value) FILTER (WHERE m.name = 'pgonce_outbox_lag_seconds') AS lag
      FROM metric AS m WHERE m.name IN ('pgonce_outbox_pending', 'pgonce_outbox_parked', 'pgonce_outbox_lag_seconds')
     GROUP BY 1, 2
), consumer AS MATERIALIZED (
    SELECT n.consumer, p.parts, p.lag, p.reported_at, k.parked, k.dead
      FROM (SELECT c.consumer FROM once.consumer_list() AS c
             UNION SELECT m.labels->>'consumer' FROM metric AS m WHERE m.name = 'pgonce_inbox_parked') AS n
      LEFT JOIN (SELECT c.consumer, count(*) AS parts, greatest(max(extract(epoch FROM c.reported_at - c."position")), 0) AS lag,
                        max(c.reported_at) AS reported_at
                   FROM once.consumer_list() AS c GROUP BY c.consumer) AS p ON p.consumer = n.consumer
      LEFT JOIN (SELECT m.labels->>'consumer' AS consumer, sum(m.value) FILTER (WHERE m.labels->>'state' <> 'dead') AS parked,
                        sum(m.value) FILTER (WHERE m.labels->>'state' = 'dead') AS dead
                   FROM metric AS m WHERE m.name = 'pgonce_inbox_parked' GROUP BY 1) AS k ON k.consumer = n.consumer
), part AS MATERIALIZED (
    SELECT p.labels->>'table' AS of_table, p.labels->>'day' AS day, p.value AS bytes
      FROM metric AS p WHERE p.name = 'pgonce_partition_bytes'
)
SELECT jsonb_build_object(
    'now', clock_timestamp(), 'server', split_part(current_setting('server_version'), ' ', 1), 'database', current_database(),
    'role', session_user,
    'attempts', (SELECT jsonb_build_object('new', 0, 'replay', 0, 'mismatch', 0, 'active', 0, 'refused', 0)
                        || coalesce(jsonb_object_agg(a.kind, a.count), '{}') FROM once.attempt_counts() AS a),
    'scopes', (SELECT coalesce(jsonb_agg(to_jsonb(s) ORDER BY s.stale + s.in_doubt DESC, s.scope), '[]') FROM swept AS s
                WHERE s.stale + s.in_doubt > 0),
    'stale', (SELECT coalesce(sum(s.stale), 0) FROM swept AS s), 'in_doubt', (SELECT coalesce(sum(s.in_doubt), 0) FROM swept AS s),
    'relays', (SELECT coalesce(jsonb_agg(jsonb_build_object('relay', r.relay, 'topic', r.topic, 'pending', coalesce(r.pending, 0),
                   'parked', coalesce(r.parked, 0), 'dead', coalesce(r.dead, 0), 'lag_seconds', r.lag,
                   'lag_ms', floor(1000 * r.lag)::bigint) ORDER BY r.dead DESC NULLS LAST, r.lag DESC NULLS LAST, r.relay, r.topic), '[]')
                 FROM relay AS r WHERE r.relay IS NOT NULL),
    'consumers', (SELECT coalesce(jsonb_agg(jsonb_build_object('consumer', c.consumer, 'parts', coalesce(c.parts, 0), 'lag_seconds', c.lag,
                      'lag_ms', floor(1000 * c.lag)::bigint, 'reported_at', c.reported_at,
                      'reported_ms', floor(1000 * extract(epoch FROM clock_timestamp() - c.reported_at))::bigint,
                      'parked', coalesce(c.parked, 0), 'dead', coalesce(c.dead, 0))
                      ORDER BY c.dead DESC NULLS LAST, c.lag DESC NULLS LAST, c.consumer), '[]') FROM consumer AS c))
    || jsonb_build_object(
    'pending', (SELECT coalesce(sum(r.pending), 0) FROM relay AS r),
    'parked', (SELECT coalesce(sum(r.parked), 0) FROM relay AS r) + (SELECT coalesce(sum(c.parked), 0) FROM consumer AS c),
    'dead', (SELECT coalesce(sum(r.dead), 0) FROM relay AS r) + (SELECT coalesce(sum(c.dead), 0) FROM consumer AS c),
    'untaken', (SELECT coalesce(sum(m.value), 0) FROM metric AS m WHERE m.name = 'pgonce_outbox_untaken'),
    'untaken_topics', (SELECT string_agg(m.labels->>'topic', ', ' ORDER BY m.labels->>'topic') FROM metric AS m
                        WHERE m.name = 'pgonce_outbox_untaken' AND m.value > 0),
    'delayed', (SELECT coalesce(sum(m.value), 0) FROM metric AS m WHERE m.name = 'pgonce_outbox_delayed'),
    'lag_seconds', (SELECT coalesce(max(r.lag), 0) FROM relay AS r),
    'lag_ms', (SELECT floor(1000 * coalesce(max(r.lag), 0))::bigint FROM relay AS r),
    'consumer_lag_seconds', (SELECT coalesce(max(c.lag), 0) FROM consumer AS c),
    'consumer_lag_ms', (SELECT floor(1000 * coalesce(max(c.lag), 0))::bigint FROM consumer AS c),
    'latency', (SELECT jsonb_build_object('outcomes', l.outcomes, 'p50_ms', round(l.p50_ms), 'p95_ms', round(l.p95_ms),
                    'p99_ms', round(l.p99_ms), 'since', l.since,
                    'since_ms', floor(1000 * extract(epoch FROM clock_timestamp() - l.since))::bigint) FROM once.latency() AS l))
    || (SELECT jsonb_build_object('keeper_seconds', k.ago, 'keeper_ms', floor(1000 * k.ago)::bigint)
          FROM (SELECT extract(epoch FROM clock_timestamp()) - max(m.value)::numeric AS ago FROM metric AS m
                 WHERE m.name = 'pgonce_keeper_last_success_timestamp_seconds' AND m.value > 0) AS k)
    || jsonb_build_object(
    'as_of', (SELECT max(s.as_of) FROM swept AS s), 'as_of_ms', (SELECT min(s.as_of_ms) FROM swept AS s),
    'keeper_failing', (SELECT string_agg(m.labels->>'step', ', ' ORDER BY m.labels->>'step') FROM metric AS m
                        WHERE m.name = 'pgonce_keeper_failing' AND m.value > 0),
    'held', (SELECT string_agg(m.labels->>'what', ', ' ORDER BY m.labels->>'what') FROM metric AS m
              WHERE m.name = 'pgonce_retention_held' AND m.value > 0),
    'days_ahead', (SELECT min(m.value) FROM metric AS m WHERE m.name = 'pgonce_partitions_ahead'),
    'partitions', (SELECT coalesce(jsonb_agg(jsonb_build_object('table', p.of_table, 'day', p.day, 'bytes', p.bytes,
                       'share', round(1000 * p.bytes / greatest((SELECT max(q.bytes) FROM part AS q), 1)))
                       ORDER BY p.bytes DESC, p.of_table, p.day), '[]') FROM part AS p),
    'tables', (SELECT coalesce(jsonb_agg(jsonb_build_object('table', m.labels->>'table', 'bytes', m.value)
                   ORDER BY m.value DESC, m.labels->>'table'), '[]') FROM metric AS m WHERE m.name = 'pgonce_table_bytes'),
    'bytes', (SELECT coalesce(sum(m.value), 0) FROM metric AS m WHERE m.name = 'pgonce_table_bytes'),
    'oldest_transaction_seconds', (SELECT max(m.value) FROM metric AS m WHERE m.name = 'pgonce_oldest_transaction_seconds'),
    'native', EXISTS (SELECT FROM pg_extension AS e WHERE e.extname = 'pgonce_native'),
    'contract_version', once.contract_version())
