-- SPDX-License-Identifier: PostgreSQL
-- once.add_days(ahead): makes the partitions that are missing, from the oldest open day to today
-- plus ahead days (default: once.setting.days_ahead), for intents and for the outbox; on its first
-- run also the row of settings and the default policy. Returns how many partitions it made. Safe to
-- call at any time and by many at once. Moves once._today() on, where that is another day. ATTACH,
-- because CREATE TABLE ... PARTITION OF would take an ACCESS EXCLUSIVE lock on the parent and stop
-- every claim.
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
        -- A day that the keeper has closed meanwhile stays closed; nobody closes one while this
        -- transaction is open.
        SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row FOR SHARE;
        IF to_regclass('once.intent_d' || day) IS NULL AND day >= setting.closed_before THEN
            EXECUTE format('CREATE TABLE once.intent_d%s (LIKE once.intent INCLUDING ALL) WITH (fillfactor = 50)', day);
            PERFORM once._close(('once.intent_d' || day)::regclass);
            EXECUTE format('ALTER TABLE once.intent ATTACH PARTITION once.intent_d%s FOR VALUES FROM (%s) TO (%s)', day,
                day, day + 1);
            EXECUTE format('COMMENT ON TABLE once.intent_d%s IS %L', day,
                'UUIDv7 keys of ' || (date '1970-01-01' + day));
            made := made + 1;
        END IF;
    END LOOP;
    FOR day IN today .. today + ahead LOOP
        IF to_regclass('once.outbox_d' || day) IS NULL THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
            IF to_regclass('once.outbox_d' || day) IS NULL THEN
                EXECUTE format('CREATE TABLE once.outbox_d%s (LIKE once.outbox INCLUDING ALL EXCLUDING IDENTITY)', day);
                PERFORM once._close(('once.outbox_d' || day)::regclass);
                EXECUTE format('ALTER TABLE once.outbox_d%s REPLICA IDENTITY FULL', day);    -- see once.decision
                EXECUTE format('ALTER TABLE once.outbox ATTACH PARTITION once.outbox_d%s FOR VALUES FROM (%s) TO (%s)',
                    day, day, day + 1);
                EXECUTE format('COMMENT ON TABLE once.outbox_d%s IS %L', day,
                    'events of ' || (date '1970-01-01' + day));
                made := made + 1;
            END IF;
        END IF;
    END LOOP;
    IF (once._today() >= today) IS NOT TRUE THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
        IF (once._today() >= today) IS NOT TRUE THEN
            PERFORM once._set_today(today);
        END IF;
    END IF;
    RETURN made;
END $$;
