-- SPDX-License-Identifier: PostgreSQL
-- once.dead_retry(consumer, message_id, tenant, reason): lets a parked message be tried again now,
-- with all its attempts before it. Messages of its key that are parked behind it follow. Recorded
-- in once.parked_decision. False where it is not parked. Raises P4041 where its id is a UUIDv7 of a
-- retired day: no attempt may run; 22023 for a missing reason, P4000 for the consumer, P4003 for
-- the tenant.
CREATE FUNCTION once.dead_retry(consumer text, message_id text, tenant text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    bucket integer := once._bucket(message_id);
    stored once.parked_message;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    PERFORM once._reason(reason);
    SELECT p.* INTO stored FROM once.parked_message AS p
     WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.message_id = message_id COLLATE "C"
       FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF bucket > 0 AND once._receivable(tenant, consumer, message_id, bucket, stored.fingerprint) = 'P4041' THEN
        PERFORM once._refuse('P4041', tenant, consumer, message_id);
    END IF;
    UPDATE once.parked_message AS p SET state = 'retrying', attempts = 0, next_at = now, updated_at = now
     WHERE p.consumer = stored.consumer AND p.tenant = stored.tenant AND p.message_id = stored.message_id;
    INSERT INTO once.parked_decision (decided_by, reason, what, consumer, tenant, subject, from_state, error)
    VALUES (session_user, reason, 'retry', stored.consumer, stored.tenant, stored.message_id, stored.state, stored.error);
    RETURN true;
END $$;
