-- SPDX-License-Identifier: PostgreSQL
-- once.drop_relay(relay, reason): deletes a relay: its progress and its parked events. For a capture (once.add_capture) the slot remains;
-- drop it with pg_drop_replication_slot. The events stay in the outbox, and no longer wait for this relay. Recorded in
-- once.parked_decision. False if there is no such relay. Raises 55006 while a session works for it, 22023 for a missing reason.
CREATE FUNCTION once.drop_relay(relay text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._reason(reason);
    IF NOT pg_try_advisory_xact_lock(once._relay_lock(relay)) THEN
        PERFORM once._refuse_relay('55006', relay, 'a session works for this relay', 'Stop it first.');
    END IF;
    DELETE FROM once.capture AS c WHERE c.slot = relay COLLATE "C";      -- first, as once._follow_slots locks
    DELETE FROM once.relay AS r WHERE r.relay = relay COLLATE "C";
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM once.parked_event AS p WHERE p.relay = relay COLLATE "C";
    INSERT INTO once.parked_decision (decided_by, reason, what, relay, subject)
    VALUES (session_user, reason, 'drop', relay, relay);
    RETURN true;
END $$;
