-- SPDX-License-Identifier: PostgreSQL
-- once._relay_held(relay): whether this session holds the relay's lock. Only the catalogue of locks shows that: trying the lock again
-- succeeds for its holder, and for every session while it is free.
CREATE FUNCTION once._relay_held(relay text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    number bigint := once._relay_lock(relay);
BEGIN
    RETURN EXISTS (SELECT FROM pg_locks AS l
                    WHERE l.pid = pg_backend_pid() AND l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted
                      AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
                      AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = number);
END $$;
