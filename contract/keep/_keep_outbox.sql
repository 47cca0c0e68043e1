-- SPDX-License-Identifier: PostgreSQL
-- once._keep_outbox(): the step 'outbox': drops the oldest day of the outbox that ended more than once.setting.outbox_retention ago and
-- that every relay has passed, by the conditions of once.retire_outbox, but without counting under the lock. A day that is needed also
-- keeps the later ones: a relay that catches up reads them in order. Each part checks the replication slots first.
CREATE FUNCTION once._keep_outbox() RETURNS once.kept LANGUAGE plpgsql SET jit = off AS $$
DECLARE
    why text := once._clock_held();
    due integer := (SELECT d FROM once._days('once.outbox', 'outbox_d') AS d LIMIT 1);
    keeps interval := (SELECT s.outbox_retention FROM once.setting AS s WHERE s.only_row);
BEGIN
    PERFORM once._follow_slots();
    IF (once._steady_now() >= to_timestamp((due + 1) * 86400.0) + keeps) IS NOT TRUE THEN
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    why := coalesce(why, (once._outbox_needed(due)).why);
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, format('day %s of the outbox stays: %s', due, why))::once.kept;
    END IF;
    PERFORM once._drop_superseded(due);
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE format('LOCK TABLE once.outbox, once.outbox_d%s IN ACCESS EXCLUSIVE MODE', due);
    PERFORM once._check_retired(due);
    PERFORM once._execute_ddl(format('ALTER TABLE once.outbox DETACH PARTITION once.outbox_d%s', due));
    PERFORM once._execute_ddl(format('DROP TABLE once.outbox_d%s', due));
    RETURN ROW(1, true, NULL, format('day %s of the outbox is dropped', due))::once.kept;
END $$;
