-- SPDX-License-Identifier: PostgreSQL
-- once._is_plain(status, body, headers): whether this outcome is good without a look at the scope's policy: what _wrong_outcome finds
-- nothing wrong with, and so small a body as any scope allows. Else once._check_outcome. Inlined.
CREATE FUNCTION once._is_plain(status integer, body bytea, headers jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT once._is_usual(status, body) AND (jsonb_typeof(headers) = 'object') IS NOT FALSE
$$;
