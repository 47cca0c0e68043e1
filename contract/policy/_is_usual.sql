-- SPDX-License-Identifier: PostgreSQL
-- once._is_usual(status, body, result_type, result_id): once._is_plain for an outcome without headers. Inlined.
CREATE FUNCTION once._is_usual(status integer, body bytea, result_type text, result_id text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT octet_length(body) > 8192 IS NOT TRUE AND (status BETWEEN 0 AND 999) IS NOT FALSE
       AND (octet_length(result_type) > 255 OR octet_length(result_id) > 2048) IS NOT TRUE
$$;
