-- SPDX-License-Identifier: PostgreSQL
-- once._claim(...): one claim, its arguments already checked: the common core of once.claim and once.claim_many. Raises
-- nothing of its own; every outcome is a verdict, and 'mismatch', 'future' and 'missing' are for the caller to raise or
-- to return. A takeover's UPDATE names the fence and state that were read: completions do not take the advisory lock
-- (the fence guards them), so the row may have moved on since. Then it is read again, a bounded number of times.
CREATE FUNCTION once._claim(tenant text, scope text, key text, bucket integer, fingerprint bytea, claimant text,
    lease interval, retention interval,
    OUT verdict text, OUT fence integer, OUT state text, OUT response_status integer, OUT response_headers jsonb,
    OUT response_body bytea,
    OUT result_type text, OUT result_id text, OUT error_code text, OUT error_message text, OUT lease_until timestamptz,
    OUT attempts integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    policy once.scope := once._policy(scope);
    locked boolean := pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key));
    now timestamptz;
    day text := once._day_state(bucket);
    stored once.intent;
    verified once.verification;
    next_state once.state;
    doubt text;
    tries integer;
BEGIN
    FOR tries IN 1 .. 8 LOOP
        now := clock_timestamp();
        IF locked AND day = 'open' AND tries = 1 THEN
            INSERT INTO once.intent AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts,
                state, tenant, scope, key,
                                          fingerprint, owner)
            VALUES (now, now, now + retention, now + coalesce(lease, policy.lease), bucket, 1, 1, 'processing', tenant,
                scope, key,
                    fingerprint, claimant)
            ON CONFLICT DO NOTHING;
            IF FOUND THEN
                verdict := 'new_claim';
                fence := 1;
                state := 'processing';
                attempts := 1;
                lease_until := now + coalesce(lease, policy.lease);
                RETURN;
            END IF;
        END IF;
        SELECT i.* INTO stored FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
             AND i.bucket = bucket;
        IF NOT FOUND AND day = 'closed' THEN
            stored := once._archived(tenant, scope, key, bucket);
        END IF;
        IF stored.state IS NULL THEN
            verdict := CASE day WHEN 'open' THEN 'processing_active' WHEN 'closed' THEN 'expired' ELSE day END;
            RETURN;
        END IF;

        verdict := once._verdict(stored.fingerprint = fingerprint, stored.state, stored.lease_until, now,
            stored.attempts,
                                 policy.max_attempts, policy.on_stale);
        next_state := NULL;
        doubt := NULL;
        IF verdict IN ('retryable_failure', 'processing_stale', 'verify', 'abandoned') AND NOT locked THEN
            verdict := 'processing_active';     -- somebody else is deciding about this intent right now
        ELSIF day = 'closed' AND verdict IN ('retryable_failure', 'processing_stale', 'verify', 'abandoned') THEN
            verdict := 'expired';
        ELSIF verdict = 'verify' THEN
            verified := once._verify(policy, tenant, scope, key);
            IF verified.answer = 'happened' THEN
                PERFORM once._store_verified(tenant, scope, key, bucket, stored.fence, verified);
                CONTINUE;
            ELSIF verified.answer = 'absent' AND (policy.max_attempts IS NULL
                OR stored.attempts < policy.max_attempts) THEN
                verdict := 'processing_stale';
            ELSE
                verdict := 'in_doubt';
                doubt := 'verify answered ' || verified.answer;
            END IF;
        END IF;

        IF verdict IN ('retryable_failure', 'processing_stale') THEN
            UPDATE once.intent AS i
               SET state = 'processing', fence = i.fence + 1, attempts = i.attempts + 1, owner = claimant,
                   updated_at = now, completed_at = NULL, lease_until = now + coalesce(lease, policy.lease),
                   expires_at = coalesce(now + retention, i.expires_at),
                   response_status = NULL, response_headers = NULL, response_body = NULL,
                   result_type = NULL, result_id = NULL, error_code = NULL, error_message = NULL
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = bucket AND i.fence = stored.fence AND i.state = stored.state
               AND i.lease_until IS NOT DISTINCT FROM stored.lease_until;
            IF NOT FOUND THEN
                CONTINUE;
            END IF;
            fence := stored.fence + 1;
            state := 'processing';
            attempts := stored.attempts + 1;
            lease_until := now + coalesce(lease, policy.lease);
            RETURN;
        ELSIF verdict = 'abandoned' THEN
            next_state := 'failed_final';
            verdict := 'final_failure';
        ELSIF verdict = 'in_doubt' AND stored.state = 'processing' THEN
            next_state := 'in_doubt';
            doubt := coalesce(doubt, CASE WHEN policy.on_stale = 'in_doubt' THEN 'its lease passed without a word'
                                          ELSE format('its lease passed without a word, and %s attempts are used up',
                                              stored.attempts) END);
        END IF;
        IF next_state IS NOT NULL AND (locked AND day <> 'closed') THEN
            UPDATE once.intent AS i
               SET state = next_state, updated_at = now, lease_until = NULL,
                   completed_at = CASE WHEN next_state = 'failed_final' THEN now END,
                   error_code = CASE WHEN next_state = 'failed_final' THEN 'abandoned' ELSE 'stale' END,
                   error_message = coalesce(doubt, concat_ws(': ',
                       format('abandoned after %s attempts', stored.attempts), stored.error_message))
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = bucket AND i.fence = stored.fence AND i.state = stored.state
               AND i.lease_until IS NOT DISTINCT FROM stored.lease_until
            RETURNING i.* INTO stored;
            IF NOT FOUND THEN
                CONTINUE;
            END IF;
        END IF;

        IF verdict NOT IN ('mismatch', 'processing_active') THEN
            response_status := stored.response_status;
            response_headers := stored.response_headers;
            response_body := stored.response_body;
            result_type := stored.result_type;
            result_id := stored.result_id;
            error_code := stored.error_code;
            error_message := stored.error_message;
        END IF;
        IF verdict <> 'mismatch' THEN
            fence := stored.fence;
            state := stored.state;
            attempts := stored.attempts;
            lease_until := stored.lease_until;
        END IF;
        RETURN;
    END LOOP;
    verdict := 'processing_active';     -- it changed under every look: somebody is at work on it
END $$;
