-- SPDX-License-Identifier: PostgreSQL
-- once.retire_day(bucket): closes a day of UUIDv7 keys for good, and all days before it, and drops their partitions, in one transaction;
-- the keeper does the same in short ones. Rows that must outlive their day move to once.archive: outcomes whose retention has not passed
-- or that a relay or a consumer may still bring back, and everything in doubt (a stale attempt becomes in doubt). Returns how many moved.
-- Refused (55006) while an attempt of such a day holds a lease or slots are moving, and for days within the horizon (22023). Afterwards a
-- late retry gets the archived answer or P4041; it never runs again. Waits for open transactions, at most lock_timeout. Call it in READ
-- COMMITTED (55000): an older snapshot would not show the last intents.
CREATE FUNCTION once.retire_day(bucket integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_variable
DECLARE
    setting once.setting;
    today integer := floor(date_part('epoch', clock_timestamp()) / 86400);
    older integer;
    piece record;
    leaf regclass;
    moved bigint := 0;
    block bigint := 0;
    limits once.limits;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: a day is retired in READ COMMITTED only',
            DETAIL = 'a snapshot from before the lock would not show its last intents';
    END IF;
    -- In the order in which once_job.keep_step and once.add_days take them: otherwise each would wait for the other, and all claims for
    -- both.
    PERFORM FROM once.closing AS c WHERE c.day <= bucket ORDER BY c.day FOR UPDATE;
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
    IF once._is_moving() THEN
        RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('pgonce: day %s cannot be retired while slots are moving', bucket),
            HINT = 'Wait for pgonce rehome; if it does not run, start it again.';
    END IF;
    SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row FOR UPDATE;
    IF (bucket BETWEEN 1 AND today - setting.horizon_days - 1) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: day %s cannot be retired', bucket),
            DETAIL = format('days up to %s are past the horizon of %s days', today - setting.horizon_days - 1,
                setting.horizon_days);
    END IF;
    -- Days close in order: no day before a closed one may be open.
    FOR older IN SELECT d FROM once._days('once.intent', 'intent_d') AS d WHERE d < bucket
                  UNION SELECT c.day FROM once.closing AS c WHERE c.day < bucket ORDER BY 1 LOOP
        moved := moved + once.retire_day(older);
    END LOOP;
    leaf := coalesce(to_regclass('once.intent_d' || bucket), to_regclass('once.intent_closed_d' || bucket));
    IF leaf IS NOT NULL THEN
        -- Before anything is read: from here on no other transaction is inside the day, and one that waits finds it closed.
        EXECUTE format('LOCK TABLE once.intent, %s IN ACCESS EXCLUSIVE MODE', leaf);
        PERFORM once._archive_month(bucket);
        limits := once._limits();
        limits.now := clock_timestamp();        -- an operator has decided about the day, so no keeper judges the clock
        WHILE block < once._blocks(leaf) LOOP
            piece := once._retire_blocks(leaf, block, block + once._stride(), true, limits);
            IF piece.held IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = '55006',
                    MESSAGE = format('pgonce: an attempt of day %s still holds its lease', bucket), DETAIL = piece.held,
                    HINT = 'Try again later.';
            END IF;
            moved := moved + piece.moved;
            block := block + once._stride();
        END LOOP;
        IF EXISTS (SELECT FROM pg_inherits AS h WHERE h.inhrelid = leaf) THEN
            PERFORM once._execute_ddl(format('ALTER TABLE once.intent DETACH PARTITION %s%s', leaf,
                (SELECT CASE WHEN (to_jsonb(h) ->> 'inhdetachpending')::boolean THEN ' FINALIZE' ELSE '' END
                   FROM pg_inherits AS h WHERE h.inhrelid = leaf)));
        END IF;
        PERFORM once._execute_ddl(format('DROP TABLE %s', leaf));
    END IF;
    DELETE FROM once.closing AS c WHERE c.day = bucket;
    UPDATE once.setting AS s SET closed_before = greatest(s.closed_before, bucket + 1) WHERE s.only_row;
    RETURN moved;
END $$;
