-- SPDX-License-Identifier: PostgreSQL
-- The page /message. $1 id, $2 kind, $3 holder (of a message: its consumer), $4 consumer, $5 tenant, $6 scope and $7 key of the intent
-- that emitted the event (each NULL: not known), $8 not NULL: with the payload. Without a consumer it is an event.
WITH named AS MATERIALIZED (
    SELECT coalesce($4::text, CASE WHEN $2::text = 'message' THEN $3::text END) AS consumer
), shown AS MATERIALIZED (
    SELECT n.consumer, clock_timestamp() AS now,
           once.parked_outline($1, n.consumer, $5, $6, $7, $8::text IS NOT NULL) AS doc
      FROM named AS n
), read AS MATERIALIZED (
    SELECT s.*, CASE WHEN s.consumer IS NOT NULL THEN decode(s.doc->>'payload', 'base64')
                     WHEN s.doc->>'payload_base64' IS NOT NULL THEN decode(s.doc->>'payload_base64', 'base64')
                     ELSE convert_to(s.doc->>'payload', 'UTF8') END AS payload
      FROM shown AS s
)
SELECT CASE WHEN r.doc IS NULL
    THEN jsonb_build_object('now', r.now, 'missing', true, 'kind', CASE WHEN r.consumer IS NULL THEN 'event' ELSE 'message' END,
             CASE WHEN r.consumer IS NULL THEN 'event_id' ELSE 'message_id' END, $1::text, 'consumer', r.consumer, 'tenant', $5::text)
    ELSE r.doc - '{payload,payload_base64}'::text[] || jsonb_build_object(
        'now', r.now, 'missing', false, 'kind', CASE WHEN r.consumer IS NULL THEN 'event' ELSE 'message' END,
        'age_ms', floor(1000 * extract(epoch FROM r.now - coalesce((r.doc->>'created_at')::timestamptz,
                                                                  (r.doc->>'parked_at')::timestamptz)))::bigint,
        'header_list', (SELECT coalesce(jsonb_agg(jsonb_build_object('name', h.key, 'value', h.value #>> '{}') ORDER BY h.key), '[]')
                          FROM jsonb_each(CASE jsonb_typeof(r.doc->'headers') WHEN 'object' THEN r.doc->'headers' END) AS h),
        'is_dead', r.doc->>'state' = 'dead' IS TRUE OR EXISTS (
            SELECT FROM jsonb_array_elements(r.doc->'relays') AS l WHERE l->>'state' = 'dead'),
        'body_asked', (r.doc->>'may_see_body')::boolean AND $8::text IS NOT NULL,
        'body', CASE WHEN r.payload IS NOT NULL THEN once.readable(r.payload) END)
    END
  FROM read AS r
