-- SPDX-License-Identifier: PostgreSQL
-- once._peek(tenant, scope, key, bucket): what is stored of an intent, its arguments already checked. The common core
-- of peek and peek_many.
CREATE FUNCTION once._peek(tenant text, scope text, key text, bucket integer,
    OUT verdict text, OUT fence integer, OUT state text, OUT response_status integer, OUT response_headers jsonb,
    OUT response_body bytea,
    OUT result_type text, OUT result_id text, OUT error_code text, OUT error_message text, OUT owner text,
    OUT lease_until timestamptz,
    OUT attempts integer, OUT created_at timestamptz, OUT completed_at timestamptz, OUT traceparent text)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
DECLARE
    stored once.intent;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND bucket <> 0 THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    IF stored.state IS NULL THEN
        verdict := CASE once._day_state(bucket) WHEN 'closed' THEN 'expired' ELSE 'absent' END;
        RETURN;
    END IF;
    verdict := once._verdict(true, stored.state, stored.lease_until, clock_timestamp(), 0, NULL, 'takeover');
    fence := stored.fence;
    state := stored.state;
    response_status := stored.response_status;
    response_headers := stored.response_headers;
    response_body := stored.response_body;
    result_type := stored.result_type;
    result_id := stored.result_id;
    error_code := stored.error_code;
    error_message := stored.error_message;
    owner := stored.owner;
    lease_until := stored.lease_until;
    attempts := stored.attempts;
    created_at := stored.created_at;
    completed_at := stored.completed_at;
    traceparent := stored.traceparent;
END $$;
