-- SPDX-License-Identifier: PostgreSQL
-- once._is_dated(key): whether a key with the length, the dashes and the version of a UUIDv7 (LIKE) is certainly one, in lower case.
-- False is not final: once._bucket decides. Inlined.
CREATE FUNCTION once._is_dated(key text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT key COLLATE "C" NOT LIKE '%-%-%-%-%-%' AND key COLLATE "C" !~ '[^0-9a-f-]'
$$;
