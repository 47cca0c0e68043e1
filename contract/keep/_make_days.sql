-- SPDX-License-Identifier: PostgreSQL
-- once._make_days(needed): lets the contract run without a daemon: creates the partitions of today and of tomorrow if they are missing,
-- and that of the day `needed`, which has none yet (NULL: no other), unless that day is closed; and updates once._today(). Called by a
-- call that finds a day without a partition, and by the first calls of a day, which find once._today() out of date (once._is_new_day).
-- Raises nothing itself: a partition that cannot be created now stays missing, and the caller checks again.
--
-- Why it is written so: it runs in any caller's transaction, which may have another purpose. So it does nothing in a read-only
-- transaction; it takes no lock that a call waits for (ATTACH PARTITION lets other sessions read and write), and the locks that it needs
-- only for a moment; and a failure is rolled back to a savepoint: DDL may be forbidden, once.intent in use by a statement of this
-- session, or another lock in the way. One session at a time creates days, until its transaction ends, however long that takes. Other
-- sessions continue without; those that need a day that they cannot see wait a little (once._wait_for_days). After a failure no session
-- tries again for a second: see once.days_failed_seq. once._today() changes to a day only after the transaction that created its
-- partition, so that every session that sees the change knows of the partition.
CREATE FUNCTION once._make_days(needed integer) RETURNS void LANGUAGE plpgsql
SET lock_timeout = '100ms' SET default_tablespace = '' SET default_table_access_method = heap AS $$
DECLARE
    seconds bigint := floor(date_part('epoch', clock_timestamp()));
    today integer := seconds / 86400;
    before integer;
    day integer;
    made boolean := false;
BEGIN
    IF current_setting('transaction_read_only') = 'on' OR pg_sequence_last_value('once.days_failed_seq') IN (seconds, seconds - 1) THEN
        RETURN;
    END IF;
    BEGIN
        IF NOT pg_try_advisory_xact_lock(hashtextextended('pgonce partitions', 20778)) THEN
            RETURN;
        END IF;
        -- As ATTACH does; it also makes partitions of other sessions visible.
        LOCK TABLE ONLY once.intent, ONLY once.outbox IN SHARE UPDATE EXCLUSIVE MODE;
        -- A closed day stays closed, even today if the clock was set back, and no session closes a day while this transaction is open.
        SELECT s.closed_before INTO STRICT before FROM once.setting AS s WHERE s.only_row;
        IF needed < today THEN          -- 40001 if the snapshot is too old
            SELECT s.closed_before INTO STRICT before FROM once.setting AS s WHERE s.only_row FOR SHARE;
        END IF;
        FOREACH day IN ARRAY CASE WHEN needed < today THEN ARRAY[needed] ELSE '{}' END || ARRAY[today, today + 1] LOOP
            IF day >= before AND to_regclass('once.intent_d' || day) IS NULL THEN
                PERFORM once._make_day('intent', day);
                made := true;
            END IF;
            IF day >= today AND to_regclass('once.outbox_d' || day) IS NULL THEN
                PERFORM once._make_day('outbox', day);
                made := true;
            END IF;
        END LOOP;
        IF once._move_today(today) THEN
            made := true;
        END IF;
        IF NOT made THEN
            RAISE EXCEPTION USING ERRCODE = '02000', MESSAGE = 'pgonce: the locks are released';
        END IF;
    EXCEPTION
        WHEN SQLSTATE '02000' OR object_in_use OR serialization_failure THEN     -- nothing to do, or not in this transaction
            NULL;
        WHEN OTHERS THEN
            PERFORM setval('once.days_failed_seq', seconds);
    END;
END $$;
