-- SPDX-License-Identifier: PostgreSQL
-- once._make_days(needed): the contract keeps itself running: makes the partitions of today and of tomorrow, where they are missing, and
-- of the day `needed`, which has none as yet (NULL: no other), unless that is closed; and moves once._today() on. Whoever meets a
-- day without a partition calls it, and the first calls of a day, which find once._today() behind (once._is_new_day). Raises nothing of
-- its own: what cannot be made now is missing still, and the caller looks.
--
-- Why it is written so: it is run in anybody's transaction, for whatever that came for. So it does nothing where that may not write;
-- takes no lock that a call waits for (ATTACH PARTITION lets others read and write), and those that it needs only for a moment; and what
-- fails is undone to a savepoint: DDL may be forbidden, once.intent in use by a statement of this session, another lock in the way. One
-- session makes days at a time, until its transaction ends, however long that is. The others go on without; those who need a day that
-- they cannot see wait a little (once._wait_for_days). After a failure nobody tries again for a second: once.days_failed_seq tells.
-- once._today() is moved to a day only after the transaction that made its partition, so that whoever sees it knows of that.
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
        -- As ATTACH does; it brings what others have made since.
        LOCK TABLE ONLY once.intent, ONLY once.outbox IN SHARE UPDATE EXCLUSIVE MODE;
        -- What was closed stays closed, today as well where the clock has stepped back, and nobody closes a day while this transaction
        -- is open.
        SELECT s.closed_before INTO STRICT before FROM once.setting AS s WHERE s.only_row;
        IF needed < today THEN          -- 40001 where the snapshot is too old
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
            RAISE EXCEPTION USING ERRCODE = '02000', MESSAGE = 'pgonce: the locks are given back';
        END IF;
    EXCEPTION
        WHEN SQLSTATE '02000' OR object_in_use OR serialization_failure THEN     -- nothing to do, or not in this transaction
            NULL;
        WHEN OTHERS THEN
            PERFORM setval('once.days_failed_seq', seconds);
    END;
END $$;
