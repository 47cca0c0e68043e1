-- SPDX-License-Identifier: PostgreSQL
-- once._close_day(day): closes an open day for new intents: see once._keep_close. No scan under its locks. Everything that may wait
-- longer than an instant comes before the lock on the day's table. Days close in order, or it raises 55000: once.start sees by the table
-- whether a day is open, once.claim by the last closed day, and both must agree.
CREATE FUNCTION once._close_day(day integer) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    oldest integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));    -- once.add_days no longer creates it
    oldest := (SELECT d FROM once._days('once.intent', 'intent_d') AS d LIMIT 1);
    IF oldest < day THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: day %s cannot be closed while day %s is open', day, oldest),
            DETAIL = 'all days before a closed day count as closed, too',
            HINT = format('Close day %s first. once_job.keep_step and once.retire_day close days in their order.', oldest);
    END IF;
    UPDATE once.setting AS s SET closed_before = greatest(s.closed_before, day + 1) WHERE s.only_row;
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE format('LOCK TABLE once.intent_d%s IN ACCESS EXCLUSIVE MODE', day);
    PERFORM once._execute_ddl(format('ALTER TABLE once.intent_d%1$s RENAME TO intent_closed_d%1$s', day));
    -- A restore inserts the old rows, with an empty search_path, as pg_dump and pg_restore set it: after --schema-only the trigger exists
    -- before the rows. No function of the contract runs with an empty search_path.
    PERFORM once._execute_ddl(format('CREATE TRIGGER closed BEFORE INSERT ON once.intent_closed_d%s FOR EACH ROW'
                   ' WHEN (current_setting(''search_path'') <> '''') EXECUTE FUNCTION once._refuse_closed()', day));
    PERFORM once._next_phase(day, 'doubt');
END $$;
