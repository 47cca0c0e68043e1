-- SPDX-License-Identifier: PostgreSQL
-- Before the first migration of a contract that is in use: locks all of its tables, so that no migration waits for one while it holds
-- another. Clients take them in other orders: while this waits it holds none for longer than 800 milliseconds, and then begins anew.
-- That is before PostgreSQL looks for a deadlock (deadlock_timeout, 1 second), so no client loses a transaction. It tries so long as
-- lock_timeout says.
DO $$
DECLARE
    patience constant interval := pg_catalog.current_setting('lock_timeout')::interval;
    first_try constant timestamptz := pg_catalog.clock_timestamp();
    try timestamptz;
    held regclass;
BEGIN
    LOOP
        try := clock_timestamp();
        BEGIN
            FOR held IN
                SELECT c.oid FROM pg_catalog.pg_class AS c WHERE c.relnamespace = 'once'::regnamespace AND c.relkind IN ('r', 'p')
                 ORDER BY c.relkind, c.oid
            LOOP
                PERFORM set_config('lock_timeout', ceil(greatest(1, 800 - 1000 * extract(epoch FROM clock_timestamp() - try)))::text, true);
                EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', held);
            END LOOP;
            EXIT;
        EXCEPTION
            WHEN lock_not_available THEN
                IF patience > '0' AND clock_timestamp() - first_try > patience THEN
                    RAISE EXCEPTION USING ERRCODE = 'lock_not_available', MESSAGE = 'pgonce: a transaction holds a table of the contract',
                        HINT = 'Run it again when that transaction has ended.';
                END IF;
            WHEN undefined_table THEN NULL;    -- a day that has just been dropped
        END;
        PERFORM pg_sleep(0.05 + random() / 10);
    END LOOP;
    PERFORM set_config('lock_timeout', (1000 * extract(epoch FROM patience))::bigint::text, true);
END $$;
