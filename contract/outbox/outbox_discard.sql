-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_discard(event_id, relay, reason): gives up a parked event: this relay (NULL: none that has it parked) will
-- not deliver it any more, and what was parked behind it goes on. The event itself stays in the outbox. With relay NULL a
-- delayed event (once.emit_later) is deleted; see once.cancel_event for applications. Recorded in
-- once.parked_decision. False where it is neither parked nor delayed. An attempt that is under way at this moment may still succeed.
-- Raises 22023 for a missing reason or an unknown relay.
CREATE FUNCTION once.outbox_discard(event_id uuid, relay text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN once._decide_parked($1, $2, $3, 'discard');
END $$;
