-- SPDX-License-Identifier: PostgreSQL
-- once._relay_own(relay): whether a transaction of this database wrote the relay's progress, so that it is valid here. See
-- once._relay_sign.
CREATE FUNCTION once._relay_own(relay text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM once.relay AS r WHERE r.relay = _relay_own.relay COLLATE "C" AND r.written_by = r.xmin)
$$;
