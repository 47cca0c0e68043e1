-- SPDX-License-Identifier: PostgreSQL
-- Parked events whose turn it is. The columns are those of relay_fetch.sql.
SELECT e.id, e.xid, e.day, e.event_id, e.topic, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant, e.traceparent,
       CASE WHEN e.headers IS NOT NULL THEN
            ARRAY(SELECT unnest(ARRAY[h.key, coalesce(h.value, 'null')]) FROM jsonb_each_text(e.headers) AS h) END AS headers,
       e.payload, e.payload_bytes, e.content_type, e.created_at, e.attempts, e.blocked
  FROM once_job.relay_due($1::text, $2::integer, $3::boolean) AS e
