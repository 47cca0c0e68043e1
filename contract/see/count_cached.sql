-- SPDX-License-Identifier: PostgreSQL
-- once.count_cached(replays, finals, mismatches): counts attempts that a gateway has answered from copies in its own memory, so that
-- once.counts() includes them: at most a million of each in one call. Returns what such a gateway must know of this server: a text that
-- changes after a restart, when a standby is promoted (so after each failover and restore), in another database and for another role; and
-- the shortest retention of all scopes, in milliseconds, at most a day: an outcome without its own retention is kept for at least that.
CREATE FUNCTION once.count_cached(replays bigint, finals bigint, mismatches bigint, OUT server text, OUT retention_ms integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    identifier text := '';
    counted bigint;
BEGIN
    IF replays + finals + mismatches > 0 AND current_setting('transaction_read_only') = 'off' THEN
        SELECT sum(CASE WHEN nextval('once.counted_replay') > 0 THEN 1 END) INTO counted FROM generate_series(1, least(replays, 1000000));
        SELECT sum(CASE WHEN nextval('once.counted_final') > 0 THEN 1 END) INTO counted FROM generate_series(1, least(finals, 1000000));
        SELECT sum(CASE WHEN nextval('once.counted_mismatch') > 0 THEN 1 END) INTO counted
          FROM generate_series(1, least(mismatches, 1000000));
    END IF;
    -- Separately: PostgreSQL checks the right to call a function when a statement begins, even if the call is never reached.
    IF has_function_privilege('pg_control_system()', 'execute') THEN
        identifier := (SELECT c.system_identifier FROM pg_control_system() AS c);
    END IF;
    server := concat_ws('/', identifier, pg_is_in_recovery(), extract(epoch FROM pg_postmaster_start_time()),
                        (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()), session_user);
    retention_ms := (SELECT least(86400000, min(extract(epoch FROM s.retention)) * 1000) FROM once.scope AS s);
END $$;
