-- SPDX-License-Identifier: PostgreSQL
-- once._receivable(tenant, consumer, message_id, bucket, fingerprint): the thorough check of one message, for those that
-- once.receive_many leaves over: 'new' (and its lock is held), 'duplicate', or the SQLSTATE that once.receive would raise.
CREATE FUNCTION once._receivable(tenant text, consumer text, message_id text, bucket integer, fingerprint bytea)
RETURNS text LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    locked boolean := pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, message_id));
    stored once.intent;
    day text;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C" AND i.key = message_id COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND bucket <> 0 THEN
        stored := once._archived(tenant, consumer, message_id, bucket);
    END IF;
    IF stored.state IS NOT NULL THEN
        RETURN CASE WHEN stored.fingerprint <> fingerprint THEN 'P4050'
                    WHEN stored.state = 'succeeded' THEN 'duplicate' ELSE 'P4099' END;
    END IF;
    day := once._open_day(bucket);
    RETURN CASE WHEN day = 'closed' THEN 'P4041' WHEN day = 'future' THEN 'P4001' WHEN day = 'missing' THEN 'P4098'
                WHEN locked THEN 'new' ELSE 'P4029' END;
END $$;
