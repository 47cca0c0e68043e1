-- SPDX-License-Identifier: PostgreSQL
-- once.parked_show(id, consumer, tenant, scope, key): everything known about one event or message as one JSON document, with the
-- decisions about it. For people and tools; members may be added.
-- consumer NULL: the event of this id: the event (its payload as JSON text, see once.story; bytes as base64), and its state with each
-- relay that takes its topic ('pending', 'waiting', 'retrying', 'dead', or 'passed': delivered, discarded, or from before the relay
-- began). A delayed event has not_before, and no place in the outbox and no relays yet; created_at is when it was emitted. NULL if there
-- is no such event, or it belongs to another tenant (NULL: any). An event that is parked nowhere is looked up among the events of the
-- intent that scope and key name, or else searched for through the whole outbox. consumer given: its message of this id and tenant (NULL:
-- ''): its content (the payload as base64) and its state. NULL if it is not parked. Raises P4000 for the consumer, P4003 for the tenant.
CREATE FUNCTION once.parked_show(id text, consumer text DEFAULT NULL, tenant text DEFAULT NULL, scope text DEFAULT NULL,
    key text DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM once._parked_filter(NULL, NULL, $2, $3, NULL, NULL, NULL, NULL, NULL, NULL);
    RETURN CASE WHEN $2 IS NULL THEN once._show_event(once._event_id($1), $3, $4, $5)
               ELSE once._show_message($2, coalesce($3, ''), $1) END;
END $$;
