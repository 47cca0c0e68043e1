-- SPDX-License-Identifier: PostgreSQL
-- once._relay_own(relay): whether a relay's progress was written by a transaction of this database, and so means something
-- here. See once._relay_sign.
CREATE FUNCTION once._relay_own(relay text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM once.relay AS r WHERE r.relay = _relay_own.relay COLLATE "C" AND r.written_by = r.xmin)
$$;
