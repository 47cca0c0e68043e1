-- SPDX-License-Identifier: PostgreSQL
-- once._keep_detach(in_own_transaction): the step 'detach': detaches the table of a day without remaining rows from once.intent.
-- Concurrently, by a statement that the caller runs, if the caller can: then no attempt waits. Otherwise under a lock of an instant on
-- once.intent. It finishes a concurrent detach that was interrupted.
CREATE FUNCTION once._keep_detach(in_own_transaction boolean) RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    closing once.closing;
    leaf regclass;
    attached boolean;
    pending boolean;
    statement text;
BEGIN
    SELECT c.* INTO closing FROM once.closing AS c WHERE c.phase = 'detach' ORDER BY c.day LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    leaf := to_regclass('once.intent_closed_d' || closing.day);
    SELECT true, coalesce((to_jsonb(h) ->> 'inhdetachpending')::boolean, false) INTO attached, pending
      FROM pg_inherits AS h WHERE h.inhrelid = leaf AND h.inhparent = 'once.intent'::regclass;
    IF attached IS NULL THEN
        PERFORM once._next_phase(closing.day, 'drop');
        RETURN ROW(1, true, NULL, format('day %s is detached', closing.day))::once.kept;
    END IF;
    statement := format('ALTER TABLE once.intent DETACH PARTITION once.intent_closed_d%s', closing.day);
    IF pending THEN
        statement := statement || ' FINALIZE';
    END IF;
    IF in_own_transaction AND current_setting('server_version_num')::integer >= 140000
       AND pg_has_role(coalesce(nullif(current_setting('role'), 'none'), session_user::text),
                       (SELECT c.relowner FROM pg_class AS c WHERE c.oid = 'once.intent'::regclass), 'USAGE') THEN
        RETURN ROW(0, true, statement || CASE WHEN pending THEN '' ELSE ' CONCURRENTLY' END,
            format('day %s can be detached', closing.day))::once.kept;
    END IF;
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE statement;
    PERFORM once._next_phase(closing.day, 'drop');
    RETURN ROW(1, true, NULL, format('day %s is detached', closing.day))::once.kept;
END $$;
