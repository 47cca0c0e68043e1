-- SPDX-License-Identifier: PostgreSQL
-- once._slot(slot, server): the state of a replication slot of this database. why: the reason why it may have lost or may never deliver
-- something that it confirmed; NULL: it can be trusted. server: the server on which the slot was last trusted (its WAL's timeline and its
-- cluster's identifier, in the form of now_on; NULL: not yet); written: how far this server's WAL is written. A slot does not move to a
-- promoted standby unless the server synchronises it; a slot of that name there is a new one, and the events between the two are never
-- delivered. A standby has slots of its own, about which this function says nothing.
CREATE FUNCTION once._slot(slot text, server text, OUT why text, OUT confirmed pg_lsn, OUT active boolean, OUT wal_status text,
    OUT restart pg_lsn, OUT written pg_lsn, OUT now_on text) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
DECLARE
    found jsonb := (SELECT to_jsonb(s) FROM pg_replication_slots AS s
                     WHERE s.slot_name = slot AND s.database = current_database());
BEGIN
    active := coalesce((found ->> 'active')::boolean, false);
    confirmed := (found ->> 'confirmed_flush_lsn')::pg_lsn;
    restart := (found ->> 'restart_lsn')::pg_lsn;
    wal_status := found ->> 'wal_status';
    IF once._wal_told() AND has_function_privilege('pg_walfile_name(pg_lsn)', 'execute') AND NOT pg_is_in_recovery() THEN
        written := pg_current_wal_insert_lsn();
        now_on := left(pg_walfile_name(written), 8);
        IF has_function_privilege('pg_control_system()', 'execute') THEN
            now_on := now_on || ' of ' || (SELECT s.system_identifier FROM pg_control_system() AS s);
        END IF;
    END IF;
    why := CASE
        WHEN pg_is_in_recovery() THEN NULL
        WHEN found IS NULL THEN 'there is no such logical slot in this database'
        WHEN (found ->> 'temporary')::boolean THEN 'the slot is temporary'
        WHEN wal_status = 'lost' OR found ->> 'invalidation_reason' IS NOT NULL
            THEN concat_ws(': ', 'the server has invalidated the slot', found ->> 'invalidation_reason')
        WHEN now_on IS NULL THEN 'the server does not tell how far its WAL is'
        WHEN server <> now_on AND (found ->> 'synced')::boolean IS NOT TRUE
            THEN format('the server was promoted, restored or upgraded (timeline %s, and before %s), and the slot was not'
                        || ' synchronised', now_on, server) END;
END $$;
