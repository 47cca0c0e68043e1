-- SPDX-License-Identifier: PostgreSQL
-- once._relay_lock(relay): the 64-bit number of a relay's advisory lock, which the one session that works for it holds.
CREATE FUNCTION once._relay_lock(relay text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtextextended(relay COLLATE "C", 20781)
$$;
