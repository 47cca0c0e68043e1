-- SPDX-License-Identifier: PostgreSQL
-- once._wait_for_days(): waits, for at most half a second, for a session that is creating partitions, and keeps no lock. Returns whether
-- none is left. The caller checks again. A transaction waits in vain only once, although a batch calls this for each of its elements.
CREATE FUNCTION once._wait_for_days() RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
BEGIN
    IF current_setting('once.waited_in_vain', true) <> '' THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('pgonce partitions', 20778));
    RAISE EXCEPTION USING ERRCODE = '02000', MESSAGE = 'pgonce: the lock is released';
EXCEPTION
    WHEN SQLSTATE '02000' THEN
        RETURN true;
    WHEN lock_not_available THEN
        PERFORM set_config('once.waited_in_vain', 'yes', true);
        RETURN false;
END $$;
