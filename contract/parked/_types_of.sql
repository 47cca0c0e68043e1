-- SPDX-License-Identifier: PostgreSQL
-- once._types_of(headers): the types named in a message's headers: Pgonce-Event-Type, a CloudEvent's type, AMQP's type.
CREATE FUNCTION once._types_of(headers jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(h.value ORDER BY array_position(n.names, lower(h.key)))
      FROM (VALUES (ARRAY['pgonce-event-type', 'ce-type', 'ce_type', 'cloudevents:type', 'type'])) AS n (names)
     CROSS JOIN LATERAL jsonb_each_text(CASE jsonb_typeof(headers) WHEN 'object' THEN headers END) AS h
     WHERE lower(h.key) = ANY (n.names)
$$;
