-- SPDX-License-Identifier: PostgreSQL
-- once.dead_show(consumer, message_id, tenant): all that is known of one parked message as one JSON document: its content
-- (the payload as base64), its state, and the decisions about it. NULL where it is not parked. For people and tools; its
-- members may grow. Raises P4000 for the consumer, P4003 for the tenant.
CREATE FUNCTION once.dead_show(consumer text, message_id text, tenant text DEFAULT '') RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    stored once.parked_message;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    SELECT p.* INTO stored FROM once.parked_message AS p
     WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.message_id = message_id COLLATE "C";
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN jsonb_build_object(
        'consumer', stored.consumer, 'tenant', stored.tenant, 'message_id', stored.message_id, 'topic', stored.topic,
        'key', stored.key, 'headers', stored.headers,
        'payload', translate(encode(stored.payload, 'base64'), E'\n', ''), 'payload_bytes', octet_length(stored.payload),
        'state', stored.state, 'attempts', stored.attempts,
        'next_at', CASE WHEN stored.state <> 'dead' THEN stored.next_at END,
        'error', stored.error, 'sqlstate', stored.sqlstate, 'position', stored.position, 'parked_at', stored.parked_at,
        'updated_at', stored.updated_at,
        'decisions', (SELECT coalesce(jsonb_agg(jsonb_build_object('at', d.decided_at, 'by', d.decided_by, 'what', d.what,
                                 'from', d.from_state, 'reason', d.reason, 'error', d.error) ORDER BY d.decided_at), '[]')
                        FROM once.parked_decision AS d
                       WHERE d.subject = message_id COLLATE "C" AND d.consumer = consumer COLLATE "C"
                         AND d.tenant = tenant COLLATE "C"));
END $$;
