-- SPDX-License-Identifier: PostgreSQL
-- once.story(scope, key, tenant): everything known about one intent as one JSON document: its row (without the fingerprint; the body as
-- base64), its decisions, its events (a payload as JSON text, because a reader that parses numbers as doubles would show other amounts)
-- with each relay's progress on them, and all of it as a "timeline": see once._timeline. NULL if nothing is stored. For people and tools;
-- members may be added. Raises P4000, P4001, P4003.
CREATE FUNCTION once.story(scope text, key text, tenant text DEFAULT '') RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    stored once.intent;
    archived boolean := false;
    expires_at timestamptz;
    decisions jsonb;
    events jsonb;
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND THEN
        stored := once._archived(tenant, scope, key, bucket);
        archived := true;
        IF stored.state IS NULL THEN
            RETURN NULL;
        END IF;
    END IF;
    expires_at := stored.completed_at + coalesce(stored.expires_at - stored.created_at, (once._policy(scope)).retention);
    SELECT coalesce(jsonb_agg(jsonb_build_object('at', d.decided_at, 'by', d.decided_by, 'reason', d.reason, 'fence', d.fence,
               'from', d.from_state, 'to', d.to_state, 'kind', to_jsonb(d)->'kind', 'before', to_jsonb(d)->'before',
               'after', to_jsonb(d)->'after') ORDER BY d.decided_at), '[]') INTO decisions
      FROM once.decision AS d
     WHERE d.tenant = tenant COLLATE "C" AND d.scope = scope COLLATE "C" AND d.key = key COLLATE "C";
    SELECT coalesce(jsonb_agg(jsonb_build_object('id', o.event_id, 'topic', o.topic, 'type', o.event_type, 'at', o.created_at,
               'aggregate_type', o.aggregate_type, 'aggregate_id', o.aggregate_id,
               'payload', CASE WHEN o.payload_bytes IS NULL THEN o.payload::text END,
               'payload_base64', translate(encode(o.payload_bytes, 'base64'), E'\n', ''), 'payload_bytes', octet_length(o.payload_bytes),
               'content_type', o.content_type,
               'relays', once._event_relays(o)) ORDER BY o.id), '[]') INTO events
      FROM once.outbox AS o
     WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C";
    events := events || (SELECT coalesce(jsonb_agg(jsonb_build_object('id', d.event_id, 'topic', d.topic, 'type', d.event_type,
                   'at', d.emitted_at, 'not_before', d.not_before, 'aggregate_type', d.aggregate_type, 'aggregate_id', d.aggregate_id,
                   'payload', d.payload::text, 'relays', jsonb_build_array()) ORDER BY d.not_before, d.emitted_at), '[]')
              FROM once.delayed_event AS d
             WHERE d.tenant = tenant COLLATE "C" AND d.scope = scope COLLATE "C" AND d.key = key COLLATE "C");
    RETURN jsonb_build_object(
        'tenant', tenant, 'scope', scope, 'key', key, 'archived', archived,
        'day', CASE WHEN bucket > 0 THEN (date '1970-01-01' + bucket)::text END,
        'state', stored.state, 'verdict', once._verdict(true, stored.state, stored.lease_until, clock_timestamp(), 0,
            NULL, 'takeover'),
        'fence', stored.fence, 'attempts', stored.attempts, 'owner', stored.owner, 'lease_until', stored.lease_until,
        'created_at', stored.created_at, 'updated_at', stored.updated_at, 'completed_at', stored.completed_at,
        'expires_at', expires_at,
        'response_status', stored.response_status, 'response_headers', stored.response_headers,
        'response_body', translate(encode(stored.response_body, 'base64'), E'\n', ''), 'response_bytes',
            octet_length(stored.response_body),
        'result_type', stored.result_type, 'result_id', stored.result_id,
        'error_code', stored.error_code, 'error_message', stored.error_message, 'traceparent', stored.traceparent,
        'decisions', decisions, 'events', events,
        'timeline', once._timeline(stored, archived, expires_at, decisions, events));
END $$;
