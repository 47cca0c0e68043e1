-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_retry(event_id, relay, reason): lets a parked event be tried again now, with all its attempts before it;
-- relay NULL: with every relay that has it parked. What is parked behind it follows when it is delivered. Recorded in
-- once.parked_decision. False where it is not parked (delivered, discarded, or not passed yet). Raises 22023 for a missing
-- reason or an unknown relay.
CREATE FUNCTION once.outbox_retry(event_id uuid, relay text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    place record;
    before once.parked_event;
    retried boolean := false;
BEGIN
    PERFORM once._reason(reason);
    FOR place IN SELECT DISTINCT p.relay FROM once.parked_event AS p
                  WHERE relay IS NULL AND p.event_id = event_id ORDER BY p.relay LOOP
        retried := once.outbox_retry(event_id, place.relay, reason) OR retried;
    END LOOP;
    IF relay IS NULL THEN
        RETURN retried;
    END IF;
    PERFORM once._relay_row(relay);
    -- As a rule one; but an event that came twice into the outbox is parked twice.
    FOR before IN SELECT p.* FROM once.parked_event AS p
                   WHERE p.relay = relay COLLATE "C" AND p.event_id = event_id ORDER BY p.id FOR UPDATE LOOP
        UPDATE once.parked_event AS p SET state = 'retrying', attempts = 0, next_at = now, updated_at = now
         WHERE p.relay = before.relay AND p.id = before.id;
        INSERT INTO once.parked_decision (decided_by, reason, what, relay, tenant, subject, from_state, error)
        VALUES (session_user, reason, 'retry', before.relay, before.tenant, before.event_id, before.state, before.error);
        retried := true;
    END LOOP;
    RETURN retried;
END $$;
