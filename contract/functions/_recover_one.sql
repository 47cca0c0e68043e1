-- SPDX-License-Identifier: PostgreSQL
-- once._recover_one(stored, policy, verified, failure): stores what was found out about a stale intent, if it still is what was
-- judged: its attempt may have reported since, or renewed its lease. decided is NULL then.
CREATE FUNCTION once._recover_one(stored once.intent, policy once.scope, verified once.verification, failure text,
    OUT decided text, OUT reason text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    used_up boolean := (stored.attempts >= policy.max_attempts) IS TRUE;
    to_state once.state := 'in_doubt';
BEGIN
    IF failure IS NOT NULL THEN
        decided := 'retry';             -- nothing was found out, and the next attempt asks again
        reason := failure;
    ELSIF verified.answer = 'happened' THEN
        decided := 'succeeded';
        reason := 'verify: the effect happened';
    ELSIF verified.answer = 'absent' THEN
        decided := CASE WHEN used_up THEN 'abandoned' ELSE 'retry' END;
        reason := 'verify answered absent' || CASE WHEN used_up THEN format(', and %s attempts are used up',
            stored.attempts) ELSE '' END;
        to_state := 'failed_final';
    ELSIF verified.answer IS NOT NULL OR used_up OR policy.on_stale = 'in_doubt' THEN
        decided := 'in_doubt';
        reason := concat_ws(', and ', coalesce('verify answered ' || verified.answer, 'its lease passed without a word'),
            CASE WHEN used_up THEN format('%s attempts are used up', stored.attempts) END);
    ELSE
        decided := 'retry';
        reason := 'its lease passed without a word: the next attempt takes over';
    END IF;
    IF decided = 'retry' THEN
        RETURN;
    ELSIF once._day_state(stored.bucket) <> 'open'
          OR NOT once._hold(stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, stored.state,
                            stored.lease_until) THEN
        decided := NULL;
    ELSIF decided = 'succeeded' THEN
        PERFORM once._store_verified(stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, verified);
    ELSE
        UPDATE once.intent AS i
           SET state = to_state, updated_at = now, completed_at = CASE WHEN to_state = 'failed_final' THEN now END,
               lease_until = NULL, error_code = CASE WHEN to_state = 'failed_final' THEN 'abandoned' ELSE 'stale' END,
               error_message = reason
         WHERE i.tenant = stored.tenant COLLATE "C" AND i.scope = stored.scope COLLATE "C"
           AND i.key = stored.key COLLATE "C" AND i.bucket = stored.bucket;
        PERFORM once._record(stored.tenant, stored.scope, stored.key, stored.fence, 'processing', to_state, reason,
            CASE to_state WHEN 'failed_final' THEN 'abandon' ELSE 'doubt' END, stored);
    END IF;
END $$;
