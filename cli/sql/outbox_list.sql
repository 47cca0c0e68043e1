-- SPDX-License-Identifier: PostgreSQL
-- What the relays have still to deliver: counts by relay and topic, those that no relay takes, those that are delayed, and the events, the
-- dead ones first; without a state those that are parked. $1 relay, $2 topic, $3 state (each NULL: all), $4 how many events.
SELECT json_build_object(
    'relays', (
        SELECT coalesce(json_agg(json_build_object('relay', s.relay, 'topic', s.topic, 'state', s.state, 'events', s.events,
                   'oldest', s.oldest, 'age_ms', floor(extract(epoch FROM clock_timestamp() - s.oldest) * 1000)::bigint)
                   ORDER BY s.relay, s.topic, s.state), '[]'::json)
          FROM once.outbox_summary() AS s
         WHERE ($1::text IS NULL OR s.relay = $1) AND ($2::text IS NULL OR s.topic = $2 OR s.topic IS NULL)),
    'untaken', (
        SELECT coalesce(json_agg(json_build_object('topic', u.topic, 'events', u.events, 'oldest', u.oldest,
                   'age_ms', floor(extract(epoch FROM clock_timestamp() - u.oldest) * 1000)::bigint) ORDER BY u.topic), '[]'::json)
          FROM once.outbox_untaken() AS u WHERE $1::text IS NULL AND ($2::text IS NULL OR u.topic = $2)),
    'delayed', (
        SELECT coalesce(json_agg(json_build_object('topic', d.topic, 'events', d.events, 'next_at', d.next_at,
                   'next_ms', greatest(floor(extract(epoch FROM d.next_at - clock_timestamp()) * 1000), 0)::bigint) ORDER BY d.topic),
                   '[]'::json)
          FROM once.outbox_delayed() AS d WHERE $1::text IS NULL AND ($2::text IS NULL OR d.topic = $2)),
    'events', (
        SELECT coalesce(json_agg(json_build_object('event_id', l.event_id, 'state', l.state, 'relay', l.relay,
                   'topic', l.topic, 'event_type', l.event_type, 'tenant', l.tenant, 'aggregate_type', l.aggregate_type,
                   'aggregate_id', l.aggregate_id, 'attempts', l.attempts, 'next_at', l.next_at,
                   'next_ms', floor(extract(epoch FROM l.next_at - clock_timestamp()) * 1000)::bigint,
                   'error', l.error, 'created_at', l.created_at,
                   'age_ms', floor(extract(epoch FROM clock_timestamp() - l.created_at) * 1000)::bigint)
                   ORDER BY l.nth, l.row), '[]'::json)
          FROM (SELECT w.nth, e.row, e.relay, e.state, e.topic, e.event_id, e.event_type, e.tenant, e.aggregate_type,
                       e.aggregate_id, e.attempts, e.next_at, e.error, e.created_at
                  FROM (VALUES (1, 'dead'), (2, 'retrying'), (3, 'waiting'), (4, 'pending'), (5, 'delayed')) AS w (nth, state)
                 CROSS JOIN LATERAL once.outbox_list($1, $2, w.state, $4::integer) WITH ORDINALITY AS e (relay, state,
                       topic, event_id, event_type, tenant, aggregate_type, aggregate_id, attempts, next_at, error,
                       created_at, row)
                 WHERE CASE WHEN $3::text IS NULL THEN w.nth < 4 ELSE w.state = $3 END
                 ORDER BY w.nth, e.row LIMIT $4::integer) AS l))
