-- SPDX-License-Identifier: PostgreSQL
-- The page /messages. $1 kind, $2 relay, $3 consumer, $4 tenant, $5 topic, $6 event_type, $7 error, $8 state, $9 id (each NULL: any),
-- $10 after, $11 how many. The counts are not known by tenant, type, error and id.
WITH counted AS MATERIALIZED (
    SELECT s.kind, s.holder, s.topic, s.state, s.items, s.oldest, s.next_at,
           floor(1000 * extract(epoch FROM clock_timestamp() - s.oldest))::bigint AS age_ms,
           CASE WHEN isfinite(s.next_at) THEN greatest(floor(1000 * extract(epoch FROM s.next_at - clock_timestamp())), 0)::bigint
           END AS next_ms
      FROM once.parked_summary() AS s
     WHERE s.items > 0 AND ($1::text IS NULL OR s.kind = $1) AND ($2::text IS NULL OR (s.kind = 'event' AND s.holder = $2))
       AND ($3::text IS NULL OR (s.kind = 'message' AND s.holder = $3)) AND ($5::text IS NULL OR s.topic = $5 OR s.topic IS NULL)
), found AS MATERIALIZED (
    SELECT l.* FROM once.parked_list($1, $2, $3, $4, $5, $6, $7, $8, NULL, $9, least(greatest(coalesce($11::integer, 50), 1), 500), $10)
               WITH ORDINALITY AS l (kind, holder, state, id, topic, event_type, tenant, aggregate_type, aggregate_id, key, attempts,
               next_at, error, sqlstate, since, place, row)
), ending AS (
    SELECT (SELECT f.place FROM found AS f WHERE f.row = least(greatest(coalesce($11::integer, 50), 1), 500)) AS next
)
SELECT jsonb_build_object(
    'now', clock_timestamp(), 'kind', $1::text, 'relay', $2::text, 'consumer', $3::text, 'tenant', $4::text, 'topic', $5::text,
    'event_type', $6::text, 'error', $7::text, 'state', $8::text, 'id', $9::text, 'after', $10::text,
    'take', least(greatest(coalesce($11::integer, 50), 1), 500),
    'states', (SELECT jsonb_agg(jsonb_build_object('state', s.state, 'selected', coalesce(s.state = $8::text, false)) ORDER BY s.nth)
                 FROM unnest('{dead,retrying,waiting,pending,delayed}'::text[]) WITH ORDINALITY AS s (state, nth)),
    'summary', (SELECT coalesce(jsonb_agg(to_jsonb(c) ORDER BY c.kind, c.holder NULLS FIRST, c.topic, c.state), '[]') FROM counted AS c),
    'untaken', (SELECT coalesce(jsonb_agg(to_jsonb(c) ORDER BY c.topic), '[]') FROM counted AS c WHERE c.state = 'untaken'),
    'items', (SELECT coalesce(jsonb_agg(to_jsonb(f) - '{place,row}'::text[] || jsonb_build_object(
                  'next_at', CASE WHEN isfinite(f.next_at) THEN f.next_at END,
                  'next_ms', CASE WHEN isfinite(f.next_at)
                                  THEN greatest(floor(1000 * extract(epoch FROM f.next_at - clock_timestamp())), 0)::bigint END,
                  'age_ms', floor(1000 * extract(epoch FROM clock_timestamp() - f.since))::bigint) ORDER BY f.row), '[]') FROM found AS f),
    'next', (SELECT e.next FROM ending AS e), 'done', (SELECT e.next IS NULL FROM ending AS e))
