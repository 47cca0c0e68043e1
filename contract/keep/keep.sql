-- SPDX-License-Identifier: PostgreSQL
-- once.keep(seconds): one round of the keeper's steps, for pg_cron and the like: CALL once.keep(). Works for at most about this many
-- seconds, and continues where it stopped when it is called again. Each part of work is a transaction of its own, so it cannot be called
-- inside one. Does nothing, without a message, if another keeper holds the lease: see once.keeper_lease. A step that fails is recorded
-- (once.keeper_status) and does not stop the others. Call it at least once an hour: after a longer gap the clock counts as unsteady for a
-- while.
--
-- Why it is written so: it is not SECURITY DEFINER and has no settings, since such a procedure could not commit: it calls public functions
-- only.
CREATE PROCEDURE once.keep(seconds integer DEFAULT 50) LANGUAGE plpgsql AS $$
DECLARE
    me text := pg_catalog.format('once.keep of backend %s', pg_catalog.pg_backend_pid());
    until timestamptz := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => seconds);
    steps text[];
    each text;
    again boolean;
    began timestamptz;
    took interval;
    code text;
    said text;
BEGIN
    SELECT pg_catalog.array_agg(s.step ORDER BY s.ord) INTO steps FROM once_job.keep_steps() AS s;
    FOREACH each IN ARRAY steps LOOP
        LOOP
            COMMIT;
            SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
            IF NOT once_job.keep_take(me) THEN
                RETURN;
            END IF;
            began := pg_catalog.clock_timestamp();
            BEGIN
                SELECT k.more INTO again FROM once_job.keep_step(me, each) AS k;
            EXCEPTION WHEN OTHERS THEN      -- continue with the next step
                GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, said = MESSAGE_TEXT;
                again := false;
                BEGIN
                    PERFORM once_job.keep_failed(me, each, code, said);
                EXCEPTION WHEN OTHERS THEN      -- a full disk cannot store it either
                    RAISE WARNING 'pgonce: step % failed: % %', each, code, said;
                END;
            END;
            EXIT WHEN NOT again OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) until;
            -- At most a fifth of a core: the rest is for the attempts.
            took := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) began;
            COMMIT;
            PERFORM pg_catalog.pg_sleep_for(least(took OPERATOR(pg_catalog.*) 4::double precision, interval '1 second'));
        END LOOP;
    END LOOP;
    PERFORM once_job.keep_release(me);
END $$;
