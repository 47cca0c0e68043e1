-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_retry(event_id, relay, reason): lets a parked event be tried again now, with all its attempts before it;
-- relay NULL: with every relay that has it parked. An attempt that is under way counts as the first of them. What is parked
-- behind it follows when it is delivered. With relay NULL a delayed event (once.emit_later) is due now. Recorded in
-- once.parked_decision. False where it is neither parked nor delayed (delivered, discarded, or not passed yet). Raises 22023 for a
-- missing reason or an unknown relay.
CREATE FUNCTION once.outbox_retry(event_id uuid, relay text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN once._decide_parked($1, $2, $3, 'retry');
END $$;
