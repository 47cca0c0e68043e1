-- SPDX-License-Identifier: PostgreSQL
-- The figures that the console keeps a history of, for the charts of the overview.
WITH metric AS MATERIALIZED (
    SELECT m.name, m.labels, m.value FROM once.metrics() AS m
)
SELECT jsonb_build_object('epoch', extract(epoch FROM clock_timestamp()), 'new', 0, 'replay', 0, 'mismatch', 0, 'active', 0, 'refused', 0)
    || coalesce((SELECT jsonb_object_agg(a.kind, a.count) FROM once.attempt_counts() AS a), '{}')
    || jsonb_build_object(
    'stale', (SELECT coalesce(sum(m.value), 0) FROM metric AS m WHERE m.name = 'pgonce_stale'),
    'in_doubt', (SELECT coalesce(sum(m.value), 0) FROM metric AS m WHERE m.name = 'pgonce_in_doubt'),
    'pending', (SELECT coalesce(sum(m.value), 0) FROM metric AS m WHERE m.name = 'pgonce_outbox_pending'),
    'parked', (SELECT coalesce(sum(m.value), 0) FROM metric AS m
                WHERE m.name IN ('pgonce_outbox_parked', 'pgonce_inbox_parked') AND m.labels->>'state' <> 'dead'),
    'dead', (SELECT coalesce(sum(m.value), 0) FROM metric AS m
              WHERE m.name IN ('pgonce_outbox_parked', 'pgonce_inbox_parked') AND m.labels->>'state' = 'dead'),
    'lag_seconds', (SELECT coalesce(max(m.value), 0) FROM metric AS m WHERE m.name = 'pgonce_outbox_lag_seconds'),
    'consumer_lag_seconds', (SELECT coalesce(greatest(max(extract(epoch FROM c.reported_at - c."position")), 0), 0)
                               FROM once.consumer_list() AS c))
