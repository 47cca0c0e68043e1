-- SPDX-License-Identifier: PostgreSQL
-- once.add_days(ahead): creates the missing partitions from the oldest open day to today plus ahead days (default:
-- once.setting.days_ahead), for intents and for the outbox; on its first run also the row of settings and the default policy. Returns how
-- many partitions it created. Safe to call at any time and concurrently. You need not call it: a call that finds a day without a
-- partition creates that partition, and the next day's (once._make_days). Waits while another transaction does so, at most lock_timeout.
-- Updates once._today() if that is another day.
CREATE FUNCTION once.add_days(ahead integer DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    setting once.setting;
    today integer := floor(date_part('epoch', clock_timestamp()) / 86400);
    made integer := 0;
    day integer;
BEGIN
    INSERT INTO once.setting (closed_before) VALUES (today - 7) ON CONFLICT DO NOTHING;
    INSERT INTO once.scope (scope) VALUES ('') ON CONFLICT DO NOTHING;
    SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row;
    ahead := coalesce(ahead, setting.days_ahead);
    IF ahead NOT BETWEEN 1 AND 366 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: ahead is 1 to 366 days';
    END IF;
    FOR day IN greatest(setting.closed_before, today - setting.horizon_days) .. today + ahead LOOP
        IF to_regclass('once.intent_d' || day) IS NOT NULL THEN
            CONTINUE;
        END IF;
        -- One creator at a time; the others then find the work done.
        PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
        -- A day that the keeper has closed meanwhile stays closed; no session closes one while this transaction is open.
        SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row FOR SHARE;
        IF to_regclass('once.intent_d' || day) IS NULL AND day >= setting.closed_before THEN
            PERFORM once._make_day('intent', day);
            made := made + 1;
        END IF;
    END LOOP;
    FOR day IN today .. today + ahead LOOP
        IF to_regclass('once.outbox_d' || day) IS NULL THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
            IF to_regclass('once.outbox_d' || day) IS NULL THEN
                PERFORM once._make_day('outbox', day);
                made := made + 1;
            END IF;
        END IF;
    END LOOP;
    IF (once._today() >= today) IS NOT TRUE THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
        IF once._today() IS NULL THEN       -- not set yet
            PERFORM once._set_today(today);
        ELSE
            PERFORM once._move_today(today);
        END IF;
    END IF;
    RETURN made;
END $$;
