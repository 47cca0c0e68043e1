-- SPDX-License-Identifier: PostgreSQL
-- once._standbys_behind(): the connected standbys of this server that have not flushed what is written now, within this time; NULL: none.
-- If one of them is promoted, it does not know that a slot has closed. Needs pg_read_all_stats.
CREATE FUNCTION once._standbys_behind(wait interval) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    until timestamptz := clock_timestamp() + wait;
    written pg_lsn := pg_current_wal_insert_lsn();
    names text;
BEGIN
    LOOP
        PERFORM pg_stat_clear_snapshot();
        SELECT string_agg(DISTINCT r.application_name, ', ') INTO names FROM pg_stat_replication AS r
         WHERE r.state IN ('streaming', 'catchup') AND (r.flush_lsn >= written) IS NOT TRUE AND r.application_name <> 'pg_receivewal'
           AND NOT EXISTS (SELECT FROM pg_replication_slots AS s WHERE s.active_pid = r.pid AND s.slot_type = 'logical');
        IF names IS NULL OR clock_timestamp() > until THEN
            RETURN names;
        END IF;
        PERFORM pg_sleep(0.001);
    END LOOP;
END $$;
