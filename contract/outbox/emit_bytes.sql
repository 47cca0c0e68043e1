-- SPDX-License-Identifier: PostgreSQL
-- once.emit_bytes(topic, payload, content_type, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent):
-- once.emit for a payload of bytes in the application's own format (Avro, Protobuf, an image), which are published unchanged, with their
-- content type. The payload may be empty. A second emit of the same event_type with other bytes or another content type, or with a JSON
-- payload, raises P4051. Raises what once.emit raises; 22023 if content_type is missing, longer than 255 characters, not of the form
-- type/subtype, or contains anything but visible ASCII and inner spaces. event_bytes_max counts the bytes. PostgreSQL reads a text given
-- as payload as an escaped bytea, in which two backslashes are one: write convert_to(text, 'UTF8').
CREATE FUNCTION once.emit_bytes(topic text, payload bytea, content_type text, aggregate_type text DEFAULT NULL,
    aggregate_id text DEFAULT NULL, event_type text DEFAULT NULL, scope text DEFAULT NULL, key text DEFAULT NULL,
    headers jsonb DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
-- expand: emit_body(usual => once._are_usual_bytes(payload, content_type), given => NULL, json => 'null', bytes => payload, content_type)
$$;
