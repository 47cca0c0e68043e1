-- SPDX-License-Identifier: PostgreSQL
-- once_job.relay_look(relay, seen): whether there may be something to read: `reading` is what is committed now; changed false: no
-- transaction has ended since `seen`, so there is nothing. flushed: everything that `reading` sees is also on disk (other sessions see a
-- transaction with synchronous_commit off before it is). With a synchronous standby that is unknown, and some managed servers do not tell
-- it (once._wal_told). If false, call once_job.relay_flush before you publish anything of this snapshot. Writes nothing. Raises 55000 if
-- the relay was dropped.
CREATE FUNCTION once_job.relay_look(relay text, seen text) RETURNS TABLE (reading text, changed boolean, flushed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    written pg_lsn;
BEGIN
    PERFORM FROM once.relay AS r WHERE r.relay = relay COLLATE "C";
    IF NOT FOUND OR seen IS NULL THEN
        PERFORM once._refuse_relay('55000', relay, 'there is no such relay, or its progress is not given',
            'Call once_job.relay_take first.');
    END IF;
    reading := pg_current_snapshot();
    -- Compares the transactions from the first xid that `seen` did not know, and those still running: if either changed, the texts
    -- differ.
    changed := reading <> seen::pg_snapshot::text;
    IF changed THEN
        -- A partition created just now may have events of this snapshot, while this session does not know it yet. Its creator has a lock
        -- on it until all sessions do.
        LOCK TABLE once.outbox IN ACCESS SHARE MODE;
    END IF;
    flushed := false;
    IF once._wal_told() THEN
        -- In this order: what is in the snapshot was written to the WAL before it.
        written := pg_current_wal_insert_lsn();
        flushed := pg_current_wal_flush_lsn() >= written AND current_setting('synchronous_standby_names') = '';
    END IF;
    RETURN NEXT;
END $$;
