-- SPDX-License-Identifier: PostgreSQL
-- What pgonce top shows besides the running attempts (top_running.sql), as one document. See top_picture.c.
WITH metric AS MATERIALIZED (
    SELECT m.name, m.labels, m.value FROM once.metrics() AS m
), relay AS (
    SELECT m.labels->>'relay' AS relay, coalesce(m.labels->>'topic', '') AS topic,
           sum(m.value) FILTER (WHERE m.name = 'pgonce_outbox_pending') AS pending,
           sum(m.value) FILTER (WHERE m.name = 'pgonce_outbox_parked' AND m.labels->>'state' <> 'dead') AS parked,
           sum(m.value) FILTER (WHERE m.name = 'pgonce_outbox_parked' AND m.labels->>'state' = 'dead') AS dead,
           max(m.value) FILTER (WHERE m.name = 'pgonce_outbox_lag_seconds') AS lag
      FROM metric AS m WHERE m.name IN ('pgonce_outbox_pending', 'pgonce_outbox_parked', 'pgonce_outbox_lag_seconds')
     GROUP BY 1, 2
)
SELECT jsonb_build_object(
    'now', clock_timestamp(), 'epoch', extract(epoch FROM clock_timestamp())::double precision,
    'server', split_part(current_setting('server_version'), ' ', 1), 'database', current_database(), 'role', session_user,
    'attempts', (SELECT coalesce(jsonb_object_agg(a.kind, a.count), '{}') FROM once.attempt_counts() AS a),
    'relays', (SELECT coalesce(jsonb_agg(jsonb_build_object('relay', r.relay, 'topic', r.topic, 'pending', r.pending,
                   'parked', r.parked, 'dead', r.dead, 'lag_seconds', r.lag)
                   ORDER BY r.dead DESC NULLS LAST, r.lag DESC NULLS LAST, r.relay, r.topic), '[]')
                 FROM relay AS r WHERE r.relay IS NOT NULL),
    'untaken', (SELECT coalesce(sum(m.value), 0) FROM metric AS m WHERE m.name = 'pgonce_outbox_untaken'),
    'untaken_topics', (SELECT string_agg(m.labels->>'topic', ', ' ORDER BY m.labels->>'topic') FROM metric AS m
                        WHERE m.name = 'pgonce_outbox_untaken' AND m.value > 0),
    'pending', (SELECT coalesce(sum(r.pending), 0) FROM relay AS r),
    'parked', (SELECT coalesce(sum(r.parked), 0) FROM relay AS r),
    'dead', (SELECT coalesce(sum(r.dead), 0) FROM relay AS r),
    'lag_seconds', (SELECT coalesce(max(r.lag), 0) FROM relay AS r),
    'partitions', (SELECT coalesce(jsonb_agg(jsonb_build_object('table', p.labels->>'table', 'day', p.labels->>'day',
                       'bytes', p.value, 'size', pg_size_pretty(p.value::bigint)) ORDER BY p.value DESC), '[]')
                     FROM metric AS p WHERE p.name = 'pgonce_partition_bytes'),
    'days_ahead', (SELECT min(m.value) FROM metric AS m WHERE m.name = 'pgonce_partitions_ahead'),
    'oldest_transaction_seconds', (SELECT max(m.value) FROM metric AS m WHERE m.name = 'pgonce_oldest_transaction_seconds'),
    'keeper_seconds', (SELECT extract(epoch FROM clock_timestamp())::double precision - max(m.value) FROM metric AS m
                        WHERE m.name = 'pgonce_keeper_last_success_timestamp_seconds' AND m.value > 0),
    'keeper_failing', (SELECT string_agg(m.labels->>'step', ', ' ORDER BY m.labels->>'step') FROM metric AS m
                        WHERE m.name = 'pgonce_keeper_failing' AND m.value > 0),
    'held', (SELECT string_agg(m.labels->>'what', ', ' ORDER BY m.labels->>'what') FROM metric AS m
              WHERE m.name = 'pgonce_retention_held' AND m.value > 0))
