-- SPDX-License-Identifier: PostgreSQL
-- once.cancel_event(event_id, tenant): cancels an event of once.emit_later, in the transaction that makes the event unnecessary: if that
-- commits, the event is not published. False if it is no longer delayed (it is published, about to be, or was cancelled) or belongs to
-- another tenant. For applications; operators have once.parked_discard, which is recorded. Raises P4003.
CREATE FUNCTION once.cancel_event(event_id uuid, tenant text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._check_and_lock(tenant, 'none', 'none', E'\\x00000000000000000000000000000000', false);
    DELETE FROM once.delayed_event AS d WHERE d.event_id = event_id AND d.tenant = tenant COLLATE "C";
    RETURN FOUND;
END $$;
