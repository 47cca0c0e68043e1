-- SPDX-License-Identifier: PostgreSQL
-- once_job.relay_flush(): makes everything visible now durable: writes a few bytes to the WAL, so that the COMMIT of this transaction
-- (which you send right afterwards) waits until they and all WAL before them are on disk, and on the synchronous standby if there is one.
-- setval writes to the WAL even if the value is unchanged, leaves no dead row, and is not shown to readers of logical replication; and
-- every owner may call it, unlike pg_logical_emit_message on a managed server.
CREATE FUNCTION once_job.relay_flush() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);       -- until the transaction ends
    END IF;
    PERFORM setval('once.relay_flush_seq', 1);
END $$;
