-- SPDX-License-Identifier: PostgreSQL
-- once._claim(...): one claim, its arguments already checked: the common core of once.claim and once.claim_many. Raises
-- nothing of its own; every outcome is a verdict, and 'mismatch', 'future' and 'missing' are for the caller to raise or
-- to return. Looks before it inserts, in one statement: ON CONFLICT alone would wait for a report of this intent that is
-- part of an open transaction. Nobody can insert in between, since the advisory lock is held.
CREATE FUNCTION once._claim(tenant text, scope text, key text, bucket integer, fingerprint bytea, claimant text,
    lease interval, retention interval,
    OUT verdict text, OUT fence integer, OUT state text, OUT response_status integer, OUT response_headers jsonb,
    OUT response_body bytea, OUT result_type text, OUT result_id text, OUT error_code text, OUT error_message text,
    OUT lease_until timestamptz, OUT attempts integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    policy once.scope := once._policy(scope);
    locked boolean := pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key));
    day text := once._day_state(bucket);
    now timestamptz := clock_timestamp();
    stored once.intent;
BEGIN
    IF locked AND day = 'open' THEN
        INSERT INTO once.intent AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts, state,
                                      tenant, scope, key, fingerprint, owner)
        SELECT now, now, now + retention, now + coalesce(lease, policy.lease), bucket, 1, 1, 'processing',
               tenant, scope, key, fingerprint, claimant
         WHERE NOT EXISTS (SELECT FROM once.intent AS i
                            WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C"
                              AND i.key = key COLLATE "C" AND i.bucket = bucket)
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

    verdict := once._verdict(stored.fingerprint = fingerprint, stored.state, stored.lease_until, now, stored.attempts,
                             policy.max_attempts, policy.on_stale);
    IF verdict IN ('retryable_failure', 'processing_stale', 'verify', 'abandoned')
       OR (verdict = 'in_doubt' AND stored.state = 'processing') THEN
        IF day = 'closed' THEN
            verdict := 'expired';
        ELSIF NOT locked
              OR NOT once._hold(tenant, scope, key, bucket, stored.fence, stored.state, stored.lease_until) THEN
            verdict := 'processing_active';     -- somebody else is deciding about this intent, or reporting, right now
        ELSE
            verdict := once._take_over(verdict, stored, policy, claimant, lease, retention);
            SELECT i.* INTO STRICT stored FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = bucket;
        END IF;
    END IF;

    IF verdict = 'mismatch' THEN
        RETURN;     -- and learn nothing else of it
    END IF;
    fence := stored.fence;
    state := stored.state;
    attempts := stored.attempts;
    lease_until := stored.lease_until;
    IF verdict <> 'processing_active' THEN
        response_status := stored.response_status;
        response_headers := stored.response_headers;
        response_body := stored.response_body;
        result_type := stored.result_type;
        result_id := stored.result_id;
        error_code := stored.error_code;
        error_message := stored.error_message;
    END IF;
END $$;
