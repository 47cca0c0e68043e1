-- SPDX-License-Identifier: PostgreSQL
-- once.retire_outbox(day): drops the outbox of a past day (days since 1970), once every relay has passed all of it. Returns how many
-- events were dropped, 0 if the day has no partition. Refused with 55006 while a relay is behind, while an event of the day is parked,
-- and if there are events and no relay at all; the DETAIL names them. 22023 for today and later. Waits for open transactions, including
-- prepared ones, at most lock_timeout: set it, since new emits wait behind it. No event can be lost: after the lock no transaction is
-- writing to the day, and a late emit fails with P4098. Call it in READ COMMITTED (55000): an older snapshot would not show the last
-- events.
CREATE FUNCTION once.retire_outbox(day integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    today integer := floor(date_part('epoch', clock_timestamp()) / 86400);
    retired bigint;
BEGIN
    IF (day BETWEEN 1 AND today - 1) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: day %s of the outbox cannot be retired', day),
            DETAIL = format('today is day %s; only days before it are over', today);
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: a day of the outbox is retired in READ COMMITTED only',
            DETAIL = 'a snapshot from before the lock would not show its last events';
    ELSIF to_regclass('once.outbox_d' || day) IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM once._follow_slots();
    -- Checks before the lock, so that a day that is still needed stops no other transaction; then again under the lock, which decides.
    PERFORM once._check_retired(day);
    PERFORM once._drop_superseded(day);
    EXECUTE format('LOCK TABLE once.outbox, once.outbox_d%s IN ACCESS EXCLUSIVE MODE', day);
    PERFORM once._check_retired(day);
    EXECUTE format('SELECT count(*) FROM once.outbox_d%s', day) INTO retired;
    PERFORM once._execute_ddl(format('ALTER TABLE once.outbox DETACH PARTITION once.outbox_d%s', day));
    PERFORM once._execute_ddl(format('DROP TABLE once.outbox_d%s', day));
    RETURN retired;
END $$;
