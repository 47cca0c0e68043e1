-- SPDX-License-Identifier: PostgreSQL
-- once._begin_over(tenant, scope, key, fingerprint, traceparent): the thorough half of once.begin, for what its hot path leaves over: a
-- row that is no plain replay, a lock that another attempt has, a day that is not plainly open. Decides by the scope's
-- policy whether this attempt may run, and raises where it may not. The arguments are checked already. A stale or
-- retryable row is left as it is: finish() takes it over under the next fence.
CREATE FUNCTION once._begin_over(tenant text, scope text, key text, fingerprint bytea, traceparent text) RETURNS once.begun
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    locked boolean := pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key));
    policy once.scope := once._policy(scope);
    answer once.begun;
    stored once.intent;
    verified once.verification;
    judged text;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND bucket <> 0 THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    IF stored.state IS NULL THEN
        PERFORM once._refuse_day(tenant, scope, key, bucket);
        IF NOT locked THEN
            PERFORM once._count(scope, 'active');
            PERFORM once._refuse('P4029', tenant, scope, key);
        END IF;
        answer.verdict := 'proceed';
        answer.fence := 1;
        answer.traceparent := once._trace(traceparent);
        RETURN answer;
    END IF;

    judged := once._verdict(stored.fingerprint = fingerprint, stored.state, stored.lease_until, clock_timestamp(),
        stored.attempts, policy.max_attempts, policy.on_stale);
    IF judged NOT IN ('retryable_failure', 'processing_stale', 'verify') THEN
        PERFORM once._count(scope, judged);
    END IF;
    CASE judged
        WHEN 'replay_success' THEN
            answer.verdict := 'replay';
            answer.state := 'succeeded';
            answer.response_status := stored.response_status;
            answer.response_headers := stored.response_headers;
            answer.response_body := stored.response_body;
            answer.result_type := stored.result_type;
            answer.result_id := stored.result_id;
            answer.error_code := stored.error_code;
            answer.error_message := stored.error_message;
            answer.fence := stored.fence;
            answer.traceparent := stored.traceparent;
            RETURN answer;
        WHEN 'mismatch' THEN PERFORM once._refuse('P4002', tenant, scope, key);
        WHEN 'final_failure' THEN PERFORM once._refuse('P4030', tenant, scope, key,
            concat_ws(': ', stored.error_code, stored.error_message));
        WHEN 'in_doubt' THEN PERFORM once._refuse('P4031', tenant, scope, key,
            CASE WHEN stored.state = 'processing' THEN format('attempt %s ended without a word', stored.fence) END);
        WHEN 'abandoned' THEN PERFORM once._refuse('P4030', tenant, scope, key, format('abandoned after %s attempts',
            stored.attempts));
        WHEN 'processing_active' THEN PERFORM once._refuse('P4029', tenant, scope, key, format('its lease ends at %s',
            stored.lease_until));
        WHEN 'retryable_failure', 'processing_stale', 'verify' THEN
            IF once._day_state(bucket) = 'closed' THEN
                PERFORM once._refuse_outdated(tenant, scope, key, bucket);
            END IF;
            PERFORM once._refuse_day(tenant, scope, key, bucket);       -- of a closed day: it may not run again
            IF NOT locked THEN
                PERFORM once._count(scope, 'active');
                PERFORM once._refuse('P4029', tenant, scope, key, 'another attempt is taking it over');
            ELSIF NOT once._hold(tenant, scope, key, bucket, stored.fence, stored.state, stored.lease_until) THEN
                PERFORM once._count(scope, 'active');
                PERFORM once._refuse('P4029', tenant, scope, key, 'its attempt is reporting right now');
            END IF;
        ELSE PERFORM once._refuse('P4099', tenant, scope, key, format('state=%s verdict=%s', stored.state, judged));
    END CASE;

    -- Held, and free to run: unless its policy wants the effect to be looked for first.
    answer.verdict := 'proceed';
    answer.fence := stored.fence + 1;
    answer.traceparent := coalesce(stored.traceparent, once._trace(traceparent));
    IF judged = 'verify' THEN
        verified := once._verify(policy, tenant, scope, key);
        IF verified.answer = 'unknown' OR (verified.answer = 'absent' AND stored.attempts >= policy.max_attempts) THEN
            PERFORM once._count(scope, 'in_doubt');
            PERFORM once._refuse('P4031', tenant, scope, key, format('verify answered %s', verified.answer));
        ELSIF verified.answer = 'happened' THEN
            PERFORM once._store_verified(tenant, scope, key, bucket, stored.fence, verified);
            answer := ROW('replay', 'succeeded', verified.response_status, verified.response_headers,
                verified.response_body, verified.result_type, verified.result_id, NULL, NULL, stored.fence,
                stored.traceparent)::once.begun;
        END IF;
    END IF;
    PERFORM once._count(scope, CASE WHEN answer.verdict = 'replay' THEN 'replay' WHEN judged = 'verify' THEN 'retryable'
        ELSE judged END);
    RETURN answer;
END $$;
