-- SPDX-License-Identifier: PostgreSQL
-- Messages that the consumers have parked, the dead ones first. $1 consumer, $2 state, $3 tenant (each NULL: all), $4 how many.
SELECT json_build_object(
    'consumers', (
        SELECT coalesce(json_agg(json_build_object('consumer', c.consumer, 'state', c.state, 'messages', c.messages,
                   'oldest', c.oldest, 'age_ms', floor(extract(epoch FROM clock_timestamp() - c.oldest) * 1000)::bigint)
                   ORDER BY c.consumer, c.state), '[]'::json)
          FROM (SELECT m.consumer, m.state, count(*) AS messages, min(m.parked_at) AS oldest
                  FROM once.dead_list($1, NULL, 2147483647) AS m
                 WHERE $3::text IS NULL OR m.tenant = $3 GROUP BY m.consumer, m.state) AS c),
    'messages', (
        SELECT coalesce(json_agg(json_build_object('message_id', l.message_id, 'state', l.state, 'consumer', l.consumer,
                   'tenant', l.tenant, 'topic', l.topic, 'key', l.key, 'attempts', l.attempts, 'next_at', l.next_at,
                   'next_ms', CASE WHEN isfinite(l.next_at)
                                   THEN floor(extract(epoch FROM l.next_at - clock_timestamp()) * 1000)::bigint END,
                   'error', l.error, 'sqlstate', l.sqlstate, 'parked_at', l.parked_at,
                   'age_ms', floor(extract(epoch FROM clock_timestamp() - l.parked_at) * 1000)::bigint)
                   ORDER BY l.nth, l.row), '[]'::json)
          FROM (SELECT w.nth, m.row, m.consumer, m.state, m.message_id, m.topic, m.key, m.tenant, m.attempts, m.next_at,
                       m.error, m.sqlstate, m.parked_at
                  FROM (VALUES (1, 'dead'), (2, 'retrying'), (3, 'waiting')) AS w (nth, state)
                 CROSS JOIN LATERAL once.dead_list($1, w.state, 2147483647) WITH ORDINALITY AS m (consumer, state,
                       message_id, topic, key, tenant, attempts, next_at, error, sqlstate, parked_at, row)
                 WHERE ($2::text IS NULL OR w.state = $2) AND ($3 IS NULL OR m.tenant = $3)
                 ORDER BY w.nth, m.row LIMIT $4::integer) AS l))
