-- SPDX-License-Identifier: PostgreSQL
-- once._begin_over(...): the rare half of once.begin: there is a row and it is no plain replay. Decides by the scope's
-- policy whether this attempt may take the intent over, and raises where it may not.
CREATE FUNCTION once._begin_over(tenant text, scope text, key text, bucket integer, fingerprint bytea, locked boolean,
    stored_state once.state, stored_fingerprint bytea, stored_fence integer, stored_lease timestamptz,
        stored_attempts integer,
    OUT verdict text, OUT state text, OUT response_status integer, OUT response_headers jsonb, OUT response_body bytea,
    OUT result_type text, OUT result_id text, OUT error_code text, OUT error_message text, OUT fence integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    policy once.scope := once._policy(scope);
    verified once.verification;
    judged text := once._verdict(stored_fingerprint = fingerprint, stored_state, stored_lease, clock_timestamp(),
    stored_attempts,
                                 policy.max_attempts, policy.on_stale);
BEGIN
    fence := stored_fence + 1;
    verdict := 'proceed';
    CASE judged
        WHEN 'mismatch' THEN PERFORM once._refuse('P4002', tenant, scope, key);
        WHEN 'final_failure' THEN PERFORM once._refuse('P4030', tenant, scope, key, once._failure_text(tenant, scope,
            key, bucket));
        WHEN 'in_doubt' THEN PERFORM once._refuse('P4031', tenant, scope, key,
            CASE WHEN stored_state = 'processing' THEN format('attempt %s ended without a word', stored_fence) END);
        WHEN 'abandoned' THEN PERFORM once._refuse('P4030', tenant, scope, key, format('abandoned after %s attempts',
            stored_attempts));
        WHEN 'processing_active' THEN PERFORM once._refuse('P4029', tenant, scope, key, format('its lease ends at %s',
            stored_lease));
        WHEN 'retryable_failure', 'processing_stale', 'verify' THEN
            IF once._day_state(bucket) = 'closed' THEN
                PERFORM once._refuse_day(tenant, scope, key, bucket);       -- from the archive: it may not run again
            ELSIF NOT locked THEN
                PERFORM once._refuse('P4029', tenant, scope, key, 'another attempt is taking it over');
            ELSIF NOT once._hold(tenant, scope, key, bucket, stored_fence, stored_state, stored_lease) THEN
                PERFORM once._refuse('P4029', tenant, scope, key, 'its attempt is reporting right now');
            ELSIF judged <> 'verify' THEN
                RETURN;
            END IF;
            verified := once._verify(policy, tenant, scope, key);
            IF verified.answer = 'unknown' OR (verified.answer = 'absent'
                AND stored_attempts >= policy.max_attempts) THEN
                PERFORM once._refuse('P4031', tenant, scope, key, format('verify answered %s', verified.answer));
            ELSIF verified.answer = 'happened' THEN
                PERFORM once._store_verified(tenant, scope, key, bucket, stored_fence, verified);
                verdict := 'replay';
                state := 'succeeded';
                response_status := verified.response_status;
                response_headers := verified.response_headers;
                response_body := verified.response_body;
                result_type := verified.result_type;
                result_id := verified.result_id;
                fence := stored_fence;
            END IF;
        ELSE PERFORM once._refuse('P4099', tenant, scope, key, format('state=%s verdict=%s', stored_state, judged));
    END CASE;
END $$;
