-- SPDX-License-Identifier: PostgreSQL
-- once._take_over(verdict, stored, policy, claimant, lease, retention, traceparent): acts on a verdict that changes the row, which the
-- caller holds (once._hold): the next attempt gets the claim under the next fence, or the intent becomes final, in doubt, or what its
-- verify function answers. Returns the attempt's verdict. If the verify function raises for an intent that is already in doubt, that
-- counts as no answer: each retry asks it again, and must not fail the other claims of its batch.
CREATE FUNCTION once._take_over(verdict text, stored once.intent, policy once.scope, claimant text, lease interval,
    retention interval, traceparent text) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    exhausted boolean := stored.attempts >= policy.max_attempts;
    reason text := 'its lease passed without a report';
    verified once.verification;
BEGIN
    IF verdict = 'verify' THEN
        IF stored.state = 'in_doubt' THEN
            verified := (once._ask(policy, stored.tenant, stored.scope, stored.key)).verified;
        ELSE
            verified := once._verify(policy, stored.tenant, stored.scope, stored.key);
        END IF;
        IF verified.answer = 'happened' THEN
            PERFORM once._store_verified(stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, verified);
            RETURN 'replay_success';
        ELSIF verified.answer = 'absent' AND exhausted IS NOT TRUE THEN
            verdict := 'retryable_failure';     -- certainly no effect; 'processing_stale' would mean that one is possible
        ELSIF stored.state = 'in_doubt' THEN
            RETURN 'in_doubt';                  -- unchanged, with its own reason
        ELSE
            verdict := 'in_doubt';
            reason := 'verify answered ' || verified.answer;
        END IF;
    END IF;
    IF exhausted THEN
        reason := format('%s, and %s attempts are used up', reason, stored.attempts);
    END IF;

    IF verdict = 'in_doubt' THEN
        PERFORM once._give_up(stored, 'in_doubt', 'stale', reason, 'doubt');
        RETURN 'in_doubt';
    ELSIF verdict = 'abandoned' THEN
        PERFORM once._give_up(stored, 'failed_final', 'abandoned', once._abandoned(stored), 'abandon');
        RETURN 'final_failure';
    END IF;
    UPDATE once.intent AS i
       SET state = 'processing', fence = i.fence + 1, attempts = i.attempts + 1, owner = claimant, updated_at = now,
           completed_at = NULL, lease_until = now + coalesce(lease, policy.lease),
           expires_at = coalesce(i.created_at + retention, i.expires_at),
           traceparent = coalesce(i.traceparent, traceparent),
           (response_status, response_body, response_headers, result_type, result_id, error_code, error_message)
               = ROW(NULL, NULL, NULL, NULL, NULL, CASE WHEN verdict = 'processing_stale' THEN 'stale' END, NULL)   -- see once.release
     WHERE i.tenant = stored.tenant AND i.scope = stored.scope AND i.key = stored.key AND i.bucket = stored.bucket;
    PERFORM once._record_attempt(stored, 'processing', verified.answer);
    RETURN verdict;
END $$;
