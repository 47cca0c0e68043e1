-- SPDX-License-Identifier: PostgreSQL
-- once_job.keep_failed(keeper, step, sqlstate, message): a keeper records that a step failed: once_job.keep_step cannot, since its own
-- writes were rolled back. once.keeper_status shows it until the step succeeds.
CREATE FUNCTION once_job.keep_failed(keeper text, step text, sqlstate text, message text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    IF NOT EXISTS (SELECT FROM once_job.keep_steps() AS s WHERE s.step = step COLLATE "C") THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: a keeper has no step %s',
            quote_nullable(left(step, 80)));
    END IF;
    INSERT INTO once.keeper_step AS k (step, last_started, last_error_at, last_error)
    VALUES (step, now, now, left(concat_ws(': ', keeper, sqlstate, message), 1000))
    ON CONFLICT ON CONSTRAINT keeper_step_pkey DO UPDATE
       SET last_error_at = excluded.last_error_at, last_error = excluded.last_error;
END $$;
