-- SPDX-License-Identifier: PostgreSQL
-- once._show_message(consumer, tenant, message_id): once.parked_show for a message.
CREATE FUNCTION once._show_message(consumer text, tenant text, message_id text) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
DECLARE
    stored once.parked_message;
BEGIN
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
        'decisions', once._decisions_on(message_id, consumer, tenant));
END $$;
