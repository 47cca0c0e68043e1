-- SPDX-License-Identifier: PostgreSQL
-- once._is_undated(key): whether a key that does not look like a UUIDv7 in the usual spelling certainly belongs to bucket 0. False is not
-- final: once._bucket decides. Inlined.
CREATE FUNCTION once._is_undated(key text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT octet_length(key) <= 255 AND key COLLATE "C" ~ '^[ -~]+$'
       AND key COLLATE "C" NOT LIKE ALL (ARRAY['01%', '{01%', '___:____:01%'])
$$;
