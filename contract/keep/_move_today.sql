-- SPDX-License-Identifier: PostgreSQL
-- once._move_today(today): moves once._today() on to this day, where it is behind, the day's partition is there, and not as the work of
-- this very transaction: whoever finds once._today() moved has then been told of the partition. Returns whether it was moved. Its caller
-- holds the lock under which partitions are made.
CREATE FUNCTION once._move_today(today integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF once._today() >= today OR NOT once._has_day('intent', today)
       OR EXISTS (SELECT FROM pg_locks AS l                             -- its maker has it until the end
                   WHERE l.relation = to_regclass('once.intent_d' || today) AND l.pid = pg_backend_pid()
                     AND l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
                     AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())) THEN
        RETURN false;
    END IF;
    PERFORM once._set_today(today);
    RETURN true;
END $$;
