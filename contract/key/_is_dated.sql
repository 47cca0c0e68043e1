-- SPDX-License-Identifier: PostgreSQL
-- once._is_dated(key): whether a key that has the length, the dashes and the version of a UUIDv7 in their places (LIKE) is plainly
-- one, in lower case: what it says no to may be one all the same (once._bucket). Inlined.
CREATE FUNCTION once._is_dated(key text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT key COLLATE "C" NOT LIKE '%-%-%-%-%-%' AND key COLLATE "C" !~ '[^0-9a-f-]'
$$;
