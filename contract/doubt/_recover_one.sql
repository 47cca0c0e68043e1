-- SPDX-License-Identifier: PostgreSQL
-- once._recover_one(stored, policy, verified, failure): stores the decision on a stale intent, if its row is still as it was judged: its
-- attempt may have reported since, or renewed its lease. In that case decided is NULL.
CREATE FUNCTION once._recover_one(stored once.intent, policy once.scope, verified once.verification, failure text, OUT decided text,
    OUT reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    used_up boolean := (stored.attempts >= policy.max_attempts) IS TRUE;
BEGIN
    IF failure IS NOT NULL THEN
        decided := 'retry';             -- no answer: the next attempt asks again
        reason := failure;
    ELSIF verified.answer = 'happened' THEN
        decided := 'succeeded';
        reason := 'verify: the effect happened';
    ELSIF verified.answer = 'absent' THEN
        decided := CASE WHEN used_up THEN 'abandoned' ELSE 'retry' END;
        reason := 'verify answered absent' || CASE WHEN used_up THEN format(', and %s attempts are used up',
            stored.attempts) ELSE '' END;
    ELSIF verified.answer IS NOT NULL OR used_up OR policy.on_stale = 'in_doubt' THEN
        decided := 'in_doubt';
        reason := concat_ws(', and ', coalesce('verify answered ' || verified.answer, 'its lease passed without a report'),
            CASE WHEN used_up THEN format('%s attempts are used up', stored.attempts) END);
    ELSE
        decided := 'retry';
        reason := 'its lease passed without a report: the next attempt takes over';
    END IF;
    IF decided = 'retry' THEN
        RETURN;
    ELSIF once._day_state(stored.bucket) <> 'open'
          OR NOT once._hold(stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, stored.state,
                            stored.lease_until) THEN
        decided := NULL;
    ELSIF decided = 'succeeded' THEN
        PERFORM once._store_verified(stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, verified);
    ELSIF decided = 'abandoned' THEN
        PERFORM once._give_up(stored, 'failed_final', 'abandoned', reason, 'abandon');
    ELSE
        PERFORM once._give_up(stored, 'in_doubt', 'stale', reason, 'doubt');
    END IF;
END $$;
