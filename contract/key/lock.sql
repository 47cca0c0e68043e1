-- SPDX-License-Identifier: PostgreSQL
-- once.lock(resource, wait): once.try_lock that waits, at most wait (0 to 1 day); false if the lock could not be acquired in that time. A
-- deadlock with other locks is PostgreSQL's 40P01. The caller's own lock_timeout is unchanged afterwards.
CREATE FUNCTION once.lock(resource text, wait interval) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 AS $$
DECLARE
    wait_ms numeric := extract(epoch FROM wait) * 1000;
BEGIN
    IF (wait_ms BETWEEN 0 AND 86400000) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: wait is out of range: %s', wait),
            DETAIL = '0 to 1 day';
    END IF;
    IF once.try_lock(resource) THEN
        RETURN true;
    ELSIF wait_ms < 1 THEN
        RETURN false;
    END IF;
    PERFORM set_config('lock_timeout', ceil(wait_ms)::text, true);
    PERFORM pg_advisory_xact_lock(hashtextextended(resource COLLATE "C", 20780));
    RETURN true;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END $$;
