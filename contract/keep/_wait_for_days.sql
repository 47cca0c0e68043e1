-- SPDX-License-Identifier: PostgreSQL
-- once._wait_for_days(): waits, for half a second at most, for whoever is making partitions, and keeps no lock. Returns whether nobody is
-- any more. The caller looks again.
CREATE FUNCTION once._wait_for_days() RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('pgonce partitions', 20778));
    RAISE EXCEPTION USING ERRCODE = '02000', MESSAGE = 'pgonce: the lock is given back';
EXCEPTION
    WHEN SQLSTATE '02000' THEN
        RETURN true;
    WHEN lock_not_available THEN
        RETURN false;
END $$;
