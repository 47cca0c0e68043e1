-- SPDX-License-Identifier: PostgreSQL
-- once_job.keep_step(keeper, step, concurrently): one short part of one step of the keeper's work (see once_job.keep_steps), in one short
-- transaction.
--   done     rows or partitions that it worked on
--   more     there is more to do now: call again
--   command  not NULL: a statement that the caller runs alone, outside of a transaction, before it calls again. Only
--            with concurrently, for a caller that owns the contract's tables, from PostgreSQL 14 on
--   detail   what was done, or what holds the step up, for a log
-- Raises 55000 if the keeper does not hold the lease (once_job.keep_take), 22023 for an unknown step, 25000 above READ COMMITTED, and any
-- error of the step itself: for example 55P03 if a lock could not be acquired. Record such an error with once_job.keep_failed, continue
-- with the next step, and try this one again in the next round.
CREATE FUNCTION once_job.keep_step(keeper text, step text, concurrently boolean DEFAULT false, OUT done bigint,
    OUT more boolean, OUT command text, OUT detail text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    kept once.kept;
BEGIN
    PERFORM once._keep_begin(keeper, step);
    kept := CASE step
        WHEN 'days' THEN once._keep_days()
        WHEN 'clock' THEN once._keep_clock()
        WHEN 'close' THEN once._keep_close()
        WHEN 'doubt' THEN once._keep_doubt()
        WHEN 'move' THEN once._keep_move()
        WHEN 'detach' THEN once._keep_detach(keep_step."concurrently")
        WHEN 'drop' THEN once._keep_drop()
        WHEN 'delayed' THEN once._keep_delayed()
        WHEN 'untaken' THEN once._keep_untaken()
        WHEN 'outbox' THEN once._keep_outbox()
        WHEN 'purge' THEN once._keep_purge()
        WHEN 'sweep' THEN once._keep_sweep()
        WHEN 'archive' THEN once._keep_archive()
        WHEN 'dead' THEN once._keep_dead()
        WHEN 'decisions' THEN once._keep_decisions()
    END;
    UPDATE once.keeper_step AS k SET last_started = now, last_success = clock_timestamp(), done_total = k.done_total + kept.done
     WHERE k.step = step COLLATE "C";
    done := kept.done;
    more := kept.more;
    command := kept.command;
    detail := kept.detail;
END $$;
