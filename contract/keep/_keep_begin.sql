-- SPDX-License-Identifier: PostgreSQL
-- once._keep_begin(keeper, step): raises if this keeper may not work on this step now; otherwise reads the clock, as every part of every
-- step does, and inserts the step's row.
CREATE FUNCTION once._keep_begin(keeper text, step text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '25000', MESSAGE = 'pgonce: a keeper works in READ COMMITTED only',
            DETAIL = 'a snapshot from before a lock would not show the last intents of a day',
            HINT = 'SET default_transaction_isolation = ''read committed''';
    ELSIF NOT EXISTS (SELECT FROM once_job.keep_steps() AS s WHERE s.step = step COLLATE "C") THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: a keeper has no step %s',
            quote_nullable(left(step, 80)));
    ELSIF NOT EXISTS (SELECT FROM once.keeper AS k WHERE k.keeper = keeper COLLATE "C" AND k.lease_until > now) THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: keeper %s does not hold the lease',
            quote_nullable(left(keeper, 80))),
            HINT = 'Call once_job.keep_take first; false means that another keeper is at work.';
    END IF;
    INSERT INTO once.keeper_step (step) VALUES (step) ON CONFLICT ON CONSTRAINT keeper_step_pkey DO NOTHING;
    IF step = 'days' THEN
        UPDATE once.keeper AS k SET last_round = now WHERE k.keeper = keeper COLLATE "C";
    END IF;
    PERFORM once._clock();
END $$;
