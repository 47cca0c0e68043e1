-- SPDX-License-Identifier: PostgreSQL
-- What waits, and what is parked, the dead first. $1 kind, $2 relay, $3 consumer, $4 tenant, $5 topic, $6 type, $7 error, $8 state,
-- $9 emitted or parked before (each NULL: all), $10 how many. The counts are not known by $4, $6, $7 and $9.
SELECT json_build_object(
    'counts', (
        SELECT coalesce(json_agg(json_build_object('kind', s.kind, 'holder', s.holder, 'topic', s.topic, 'state', s.state,
                   'items', s.items, 'oldest', s.oldest,
                   'age_ms', floor(extract(epoch FROM clock_timestamp() - s.oldest) * 1000)::bigint, 'next_at', s.next_at,
                   'next_ms', greatest(floor(extract(epoch FROM s.next_at - clock_timestamp()) * 1000), 0)::bigint)
                   ORDER BY s.kind, s.holder NULLS FIRST, s.topic, s.state), '[]'::json)
          FROM once.parked_summary() AS s
         WHERE coalesce($4::text, $6::text, $7::text, $9::text) IS NULL AND ($1::text IS NULL OR s.kind = $1)
           AND ($2::text IS NULL OR (s.kind = 'event' AND s.holder = $2))
           AND ($3::text IS NULL OR (s.kind = 'message' AND s.holder = $3)) AND ($5::text IS NULL OR s.topic = $5 OR s.topic IS NULL)),
    'parked', (
        SELECT coalesce(json_agg(to_jsonb(l) - '{place,row}'::text[] || jsonb_build_object(
                   'next_ms', CASE WHEN isfinite(l.next_at)
                                   THEN floor(extract(epoch FROM l.next_at - clock_timestamp()) * 1000)::bigint END,
                   'age_ms', floor(extract(epoch FROM clock_timestamp() - l.since) * 1000)::bigint) ORDER BY l.row), '[]'::json)
          FROM once.parked_list($1, $2, $3, $4, $5, $6, $7, $8, $9::timestamptz, NULL, $10::integer) WITH ORDINALITY AS l (kind, holder,
               state, id, topic, event_type, tenant, aggregate_type, aggregate_id, key, attempts, next_at, error, sqlstate, since, place,
               row)))
