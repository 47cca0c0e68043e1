-- SPDX-License-Identifier: PostgreSQL
-- once._show_event(event_id, tenant, scope, key): once.parked_show for an event.
CREATE FUNCTION once._show_event(event_id uuid, tenant text, scope text, key text) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
DECLARE
    event once.outbox;
    held once.delayed_event;
    decisions jsonb := once._decisions_on(event_id::text, NULL, NULL);
BEGIN
    SELECT d.* INTO held FROM once.delayed_event AS d WHERE d.event_id = event_id AND (tenant IS NULL OR d.tenant = tenant COLLATE "C");
    IF FOUND THEN
        RETURN jsonb_build_object(
            'event_id', held.event_id, 'created_at', held.emitted_at, 'not_before', held.not_before, 'topic', held.topic,
            'event_type', held.event_type, 'tenant', held.tenant, 'aggregate_type', held.aggregate_type,
            'aggregate_id', held.aggregate_id, 'scope', held.scope, 'key', held.key, 'traceparent', held.traceparent,
            'headers', held.headers, 'payload', held.payload::text, 'relays', jsonb_build_array(), 'decisions', decisions);
    END IF;
    SELECT o.* INTO event
      FROM (SELECT p.xid, p.id, p.day FROM once.parked_event AS p WHERE p.event_id = event_id LIMIT 1) AS f,
           once.outbox AS o
     WHERE o.xid = f.xid AND o.id = f.id AND o.day = f.day;
    IF NOT FOUND AND key IS NOT NULL THEN
        SELECT o.* INTO event FROM once.outbox AS o
         WHERE o.tenant = coalesce(tenant, '') COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
           AND o.event_id = event_id LIMIT 1;
    ELSIF NOT FOUND THEN
        SELECT o.* INTO event FROM once.outbox AS o WHERE o.event_id = event_id LIMIT 1;
    END IF;
    IF event.id IS NULL OR event.tenant <> tenant COLLATE "C" THEN
        RETURN NULL;
    END IF;
    RETURN jsonb_build_object(
        'event_id', event.event_id, 'id', event.id, 'xid', event.xid::text, 'day', (date '1970-01-01' + event.day)::text,
        'created_at', event.created_at, 'topic', event.topic, 'event_type', event.event_type, 'tenant', event.tenant,
        'aggregate_type', event.aggregate_type, 'aggregate_id', event.aggregate_id, 'scope', event.scope,
        'key', event.key, 'traceparent', event.traceparent, 'headers', event.headers,
        'payload', CASE WHEN event.payload_bytes IS NULL THEN event.payload::text END,
        'payload_base64', translate(encode(event.payload_bytes, 'base64'), E'\n', ''), 'payload_bytes', octet_length(event.payload_bytes),
        'content_type', event.content_type,
        'relays', once._event_relays(event),
        'decisions', decisions);
END $$;
