-- SPDX-License-Identifier: PostgreSQL
-- The handler, for each message in order; its name is put in place of pgonce_handler. The order is that of the arrays,
-- since the rows of a function scan come as it makes them and nothing sorts them. IS NULL: whatever the handler returns,
-- little comes back.
SELECT pgonce_handler(ROW(m.id, m.topic, m.key, m.headers, m.payload,
           CASE WHEN m.is_json THEN convert_from(m.payload, 'UTF8')::jsonb END)::once.message) IS NULL
  FROM unnest($1::text[], $2::text[], $3::text[], $4::jsonb[], $5::bytea[], $6::boolean[])
       AS m (id, topic, key, headers, payload, is_json)
