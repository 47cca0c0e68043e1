-- SPDX-License-Identifier: PostgreSQL
-- once._is_undated(key): whether a key that does not look like a UUIDv7 in the usual spelling is plainly one of bucket 0; what it
-- says no to may be one all the same (once._bucket). Inlined.
CREATE FUNCTION once._is_undated(key text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT octet_length(key) <= 255 AND key COLLATE "C" ~ '^[ -~]+$'
       AND key COLLATE "C" NOT LIKE ALL (ARRAY['01%', '{01%', '___:____:01%'])
$$;
