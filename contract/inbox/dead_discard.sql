-- SPDX-License-Identifier: PostgreSQL
-- once.dead_discard(consumer, message_id, tenant, reason): gives up a parked message: it will not be applied, and it is
-- entered in the inbox, so that it is a duplicate should the broker deliver it again. Messages of its key that are parked
-- behind it go on. Recorded in once.parked_decision. False where it is not parked. Waits while an attempt at it is under
-- way, and is false where that succeeded. Raises 22023 for a missing reason, P4029 where another transaction is receiving it,
-- P4000 for the consumer, P4003 for the tenant; and, as once.receive would, P4098 or P4001 where the id is a UUIDv7 whose day
-- has no partition or has not begun: nothing could keep it from being applied then.
CREATE FUNCTION once.dead_discard(consumer text, message_id text, tenant text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    bucket integer := once._bucket(message_id);
    stored once.parked_message;
    known text;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    PERFORM once._reason(reason);
    DELETE FROM once.parked_message AS p
     WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.message_id = message_id COLLATE "C"
    RETURNING p.* INTO stored;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A malformed id, or one of a closed day, can never be applied: there is nothing to enter.
    IF bucket >= 0 THEN
        known := once._receivable(tenant, consumer, message_id, bucket, stored.fingerprint);
        IF known = 'P4029' OR EXISTS (SELECT FROM once.peek(consumer, message_id, tenant) AS i
                                       WHERE i.verdict = 'processing_active') THEN
            PERFORM once._refuse('P4029', tenant, consumer, message_id);
        ELSIF known IN ('P4001', 'P4098') THEN
            PERFORM once._refuse_day(tenant, consumer, message_id, bucket);
            PERFORM once._refuse('P4098', tenant, consumer, message_id, 'its day was made just now');      -- since _receivable looked
        ELSIF known = 'P4099' THEN
            -- A consumer under leases left it unfinished: nobody shall take it up again.
            PERFORM once.resolve(consumer, message_id, 'succeeded', reason, tenant => tenant)
               FROM once.peek(consumer, message_id, tenant) AS i
              WHERE i.state IN ('processing', 'failed_retryable', 'in_doubt');
        ELSIF known = 'new' THEN
            INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant,
                scope, key, fingerprint)
            VALUES (now, now, now, bucket, 1, 1, 'succeeded', tenant, consumer, message_id, stored.fingerprint)
            ON CONFLICT DO NOTHING;     -- above READ COMMITTED, where a race was lost: 40001
        END IF;
    END IF;
    INSERT INTO once.parked_decision (decided_by, reason, what, consumer, tenant, subject, from_state, error)
    VALUES (session_user, reason, 'discard', stored.consumer, stored.tenant, stored.message_id, stored.state, stored.error);
    RETURN true;
END $$;
