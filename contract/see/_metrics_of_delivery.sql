-- SPDX-License-Identifier: PostgreSQL
-- once._metrics_of_delivery(): samples for once.metrics: the backlog of relays and consumers.
CREATE FUNCTION once._metrics_of_delivery() RETURNS TABLE (name text, labels jsonb, value double precision)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH summary AS MATERIALIZED (SELECT s.relay, s.topic, s.state, s.events, s.oldest FROM once.outbox_summary() AS s)
    SELECT f.name, jsonb_build_object('relay', s.relay, 'topic', coalesce(s.topic, '')), f.value
      FROM summary AS s
     CROSS JOIN LATERAL (VALUES ('pgonce_outbox_pending', s.events::double precision),
                                ('pgonce_outbox_lag_seconds',
                                 coalesce(greatest(date_part('epoch', clock_timestamp() - s.oldest), 0), 0))) AS f (name, value)
     WHERE s.state IN ('pending', 'idle')
     UNION ALL
    SELECT 'pgonce_outbox_untaken', jsonb_build_object('topic', coalesce(u.topic, '')), coalesce(u.events, 0)
      FROM (VALUES (0)) AS one (row) LEFT JOIN once.outbox_untaken() AS u ON true
     UNION ALL
    SELECT 'pgonce_outbox_delayed', jsonb_build_object('topic', coalesce(d.topic, '')), coalesce(d.events, 0)
      FROM (VALUES (0)) AS one (row) LEFT JOIN once.outbox_delayed() AS d ON true
     UNION ALL
    SELECT 'pgonce_outbox_delayed_late_seconds', '{}', coalesce(greatest(date_part('epoch', clock_timestamp() - (
           SELECT d.not_before FROM once.delayed_event AS d ORDER BY d.not_before LIMIT 1)), 0), 0)
     UNION ALL
    SELECT 'pgonce_outbox_parked', jsonb_build_object('relay', r.relay, 'state', t.state),
           coalesce((SELECT sum(s.events) FROM summary AS s WHERE s.relay = r.relay AND s.state = t.state), 0)
      FROM once.relay AS r CROSS JOIN (VALUES ('waiting'), ('retrying'), ('dead')) AS t (state)
     UNION ALL
    SELECT f.name, jsonb_build_object('relay', c.slot), f.value
      FROM once.capture_list() AS c
     CROSS JOIN LATERAL (VALUES ('pgonce_capture_active', (c.state = 'active')::integer::double precision),
                                ('pgonce_capture_broken', (c.state = 'broken')::integer),
                                ('pgonce_capture_behind_bytes', c.behind), ('pgonce_capture_kept_bytes', c.kept)) AS f (name, value)
     WHERE f.value IS NOT NULL
     UNION ALL
    SELECT 'pgonce_inbox_parked', jsonb_build_object('consumer', c.consumer, 'state', t.state), sum((c.state = t.state)::integer)
      FROM once.parked_message AS c CROSS JOIN (VALUES ('waiting'), ('retrying'), ('dead')) AS t (state)
     GROUP BY c.consumer, t.state;
END $$;
