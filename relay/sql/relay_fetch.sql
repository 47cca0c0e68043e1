-- SPDX-License-Identifier: PostgreSQL
-- Events whole, in the order of their ids. Headers as names and values in turn, as PostgreSQL prints them: its numbers
-- are longer than C's. The columns are those of relay_due.sql (reader.c reads both).
SELECT e.id, e.xid, e.day, e.event_id, e.topic, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant, e.traceparent,
       CASE WHEN e.headers IS NOT NULL THEN
            ARRAY(SELECT unnest(ARRAY[h.key, coalesce(h.value, 'null')]) FROM jsonb_each_text(e.headers) AS h) END AS headers,
       e.payload, e.payload_bytes, e.content_type, e.created_at, e.attempts, e.blocked
  FROM once_job.relay_fetch($1::text, $2::bigint[], $3::xid8[], $4::integer[], $5::boolean) AS e
