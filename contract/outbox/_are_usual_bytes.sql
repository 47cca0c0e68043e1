-- SPDX-License-Identifier: PostgreSQL
-- once._are_usual_bytes(payload, content_type): whether bytes can skip once._check_event. Inlined.
CREATE FUNCTION once._are_usual_bytes(payload bytea, content_type text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT octet_length(payload) <= 8192 AND once._is_content_type(content_type)
$$;
