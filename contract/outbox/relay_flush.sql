-- SPDX-License-Identifier: PostgreSQL
-- once_job.relay_flush(): makes durable whatever is visible now: writes a few bytes to the WAL, so that the COMMIT of this
-- transaction (yours, right afterwards) waits until they and all that precedes them are on disk, and on the synchronous
-- standby where there is one. setval writes to the WAL whatever it sets, leaves no dead row, and is not shown to readers of
-- logical replication; and every owner may call it, which is not so of pg_logical_emit_message on a managed server.
CREATE FUNCTION once_job.relay_flush() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);       -- until the transaction ends
    END IF;
    PERFORM setval('once.relay_flush_seq', 1);
END $$;
