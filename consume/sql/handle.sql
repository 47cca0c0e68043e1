-- SPDX-License-Identifier: PostgreSQL
-- Calls the handler for each message in order; its name replaces pgonce_handler. The order is that of the arrays, since a function
-- scan returns its rows as made and nothing sorts them. IS NULL keeps the result small for any return value of the handler.
SELECT pgonce_handler(ROW(m.id, m.topic, m.key, m.headers, m.payload,
           CASE WHEN m.is_json THEN convert_from(m.payload, 'UTF8')::jsonb END)::once.message) IS NULL
  FROM unnest($1::text[], $2::text[], $3::text[], $4::jsonb[], $5::bytea[], $6::boolean[])
       AS m (id, topic, key, headers, payload, is_json)
