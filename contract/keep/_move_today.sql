-- SPDX-License-Identifier: PostgreSQL
-- once._move_today(today): makes once._today() return this day, if it is behind, the day's partition exists, and this transaction has not
-- created it: a session that finds once._today() changed then also knows of the partition. Returns whether it was changed. The caller
-- holds the lock under which partitions are created.
CREATE FUNCTION once._move_today(today integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF once._today() >= today OR NOT once._has_day('intent', today)
       OR EXISTS (SELECT FROM pg_locks AS l                             -- its creator holds it until its transaction ends
                   WHERE l.relation = to_regclass('once.intent_d' || today) AND l.pid = pg_backend_pid()
                     AND l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
                     AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())) THEN
        RETURN false;
    END IF;
    PERFORM once._set_today(today);
    RETURN true;
END $$;
