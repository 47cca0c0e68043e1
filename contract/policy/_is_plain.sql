-- SPDX-License-Identifier: PostgreSQL
-- once._is_plain(status, body, headers, result_type, result_id): whether this outcome is good without a look at the scope's policy:
-- once._wrong_outcome finds nothing wrong, the body is so small that any scope allows it, and nothing else is too large. Else
-- once._check_outcome. Inlined.
CREATE FUNCTION once._is_plain(status integer, body bytea, headers jsonb, result_type text, result_id text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT once._is_usual(status, body, result_type, result_id)
       AND (jsonb_typeof(headers) = 'object' AND octet_length(headers::text) <= 65536) IS NOT FALSE
$$;
