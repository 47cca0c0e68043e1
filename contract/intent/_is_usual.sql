-- SPDX-License-Identifier: PostgreSQL
-- once._is_usual(status, body): once._is_plain of an outcome without headers. Inlined.
CREATE FUNCTION once._is_usual(status integer, body bytea) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT octet_length(body) > 8192 IS NOT TRUE AND (status BETWEEN 0 AND 999) IS NOT FALSE
$$;
