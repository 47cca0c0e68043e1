-- SPDX-License-Identifier: PostgreSQL
-- once._wait_for_older(): waits for the end of all transactions that are now open in this database, prepared ones included. A transaction
-- that begins later sees everything that was committed before. A NOTICE names the open ones once a second.
CREATE FUNCTION once._wait_for_older() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    transactions text[] := ARRAY(SELECT l.virtualtransaction FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
                          WHERE l.locktype = 'virtualxid' AND l.granted AND l.pid <> pg_backend_pid()
                            AND coalesce(a.datname = current_database(), true)
                            AND coalesce(a.backend_type, '') NOT IN ('autovacuum worker', 'walsender'));
    gids text[] := ARRAY(SELECT x.gid FROM pg_prepared_xacts AS x WHERE x.database = current_database());
    told timestamptz := clock_timestamp();
    pids integer[];
BEGIN
    LOOP
        pids := ARRAY(SELECT DISTINCT l.pid FROM pg_locks AS l
                       WHERE l.locktype = 'virtualxid' AND l.granted AND l.pid <> pg_backend_pid()
                         AND l.virtualtransaction = ANY (transactions));
        gids := ARRAY(SELECT x.gid FROM pg_prepared_xacts AS x WHERE x.database = current_database() AND x.gid = ANY (gids));
        EXIT WHEN cardinality(pids) = 0 AND cardinality(gids) = 0;
        IF clock_timestamp() > told + interval '1 second' THEN
            told := clock_timestamp();
            RAISE NOTICE 'pgonce: waiting for older transactions: backends %, prepared %', pids, gids;
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;
