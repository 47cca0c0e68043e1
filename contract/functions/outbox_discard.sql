-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_discard(event_id, relay, reason): gives up a parked event: this relay (NULL: none that has it parked) will
-- not deliver it any more, and what was parked behind it goes on. The event itself stays in the outbox. Recorded in
-- once.parked_decision. False where it is not parked. An attempt that is under way at this moment may still succeed.
-- Raises 22023 for a missing reason or an unknown relay.
CREATE FUNCTION once.outbox_discard(event_id uuid, relay text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    place record;
    before once.parked_event;
    discarded boolean := false;
BEGIN
    PERFORM once._reason(reason);
    FOR place IN SELECT DISTINCT p.relay FROM once.parked_event AS p
                  WHERE relay IS NULL AND p.event_id = event_id ORDER BY p.relay LOOP
        discarded := once.outbox_discard(event_id, place.relay, reason) OR discarded;
    END LOOP;
    IF relay IS NULL THEN
        RETURN discarded;
    END IF;
    PERFORM once._relay_row(relay);
    -- As a rule one; but an event that came twice into the outbox is parked twice.
    FOR before IN SELECT p.* FROM once.parked_event AS p
                   WHERE p.relay = relay COLLATE "C" AND p.event_id = event_id ORDER BY p.id FOR UPDATE LOOP
        DELETE FROM once.parked_event AS p WHERE p.relay = before.relay AND p.id = before.id;
        PERFORM once._promote(before.relay, ARRAY[before.aggregate]);
        INSERT INTO once.parked_decision (decided_by, reason, what, relay, tenant, subject, from_state, error)
        VALUES (session_user, reason, 'discard', before.relay, before.tenant, before.event_id, before.state, before.error);
        discarded := true;
    END LOOP;
    RETURN discarded;
END $$;
