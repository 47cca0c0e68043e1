-- SPDX-License-Identifier: PostgreSQL
-- once._is_plain(status, body, headers, result_type, result_id): whether this outcome can be stored without reading the scope's policy:
-- once._wrong_outcome finds nothing wrong, every scope allows a body of this size, and no other part is too large. If false, call
-- once._check_outcome. Inlined.
CREATE FUNCTION once._is_plain(status integer, body bytea, headers jsonb, result_type text, result_id text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT once._is_usual(status, body, result_type, result_id)
       AND (jsonb_typeof(headers) = 'object' AND octet_length(headers::text) <= 65536) IS NOT FALSE
$$;
