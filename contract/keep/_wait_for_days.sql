-- SPDX-License-Identifier: PostgreSQL
-- once._wait_for_days(): waits, for half a second at most, for whoever is making partitions, and keeps no lock. Returns whether nobody is
-- any more. The caller looks again. A transaction waits in vain but once: a batch asks for each of its elements.
CREATE FUNCTION once._wait_for_days() RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
BEGIN
    IF current_setting('once.waited_in_vain', true) <> '' THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('pgonce partitions', 20778));
    RAISE EXCEPTION USING ERRCODE = '02000', MESSAGE = 'pgonce: the lock is given back';
EXCEPTION
    WHEN SQLSTATE '02000' THEN
        RETURN true;
    WHEN lock_not_available THEN
        PERFORM set_config('once.waited_in_vain', 'yes', true);
        RETURN false;
END $$;
