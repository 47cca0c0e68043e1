-- SPDX-License-Identifier: PostgreSQL
-- once._claim(...): one claim, for arguments that are already checked: the common core of once.claim and once.claim_many. Raises nothing
-- on purpose; every outcome is a verdict, and the caller raises or returns 'mismatch', 'future' and 'missing'. Looks before it inserts,
-- in one statement: ON CONFLICT alone would wait for a report of this intent in an open transaction. No other session can insert in
-- between, since the advisory lock is held. For bucket 0 and for today each plan opens one partition: see once.start.
CREATE FUNCTION once._claim(tenant text, scope text, key text, bucket integer, fingerprint bytea, claimant text, lease interval,
    retention interval, traceparent text, takeover boolean) RETURNS once.claimed LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    policy once.scope := once._policy(scope);
    locked boolean := pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key));
    of_today boolean := bucket = once._today();
    day text;
    now timestamptz := clock_timestamp();
    fence integer := 1;
    stored once.intent;
    answer once.claimed;
    outcome once.outcome;
    counted bigint;
BEGIN
    lease := coalesce(lease, policy.lease);
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    IF bucket = 0 THEN
        day := 'open';
    ELSIF of_today THEN
        IF once._is_today(bucket) THEN
            day := 'open';
        END IF;
    END IF;
    IF day IS NULL THEN
        IF once._is_new_day() THEN
            PERFORM once._make_days(NULL);
        END IF;
        day := once._open_day(bucket);
    END IF;
    IF locked AND day = 'open' AND current_setting('transaction_read_only') = 'off' THEN
        IF bucket = 0 THEN
            fence := once._first_fence();
            -- expand: claim_new(bucket => 0)
        ELSIF of_today THEN
            -- If today has changed by now, the look-up is in the wrong partition, but ON CONFLICT still finds the row.
            -- expand: claim_new(bucket => once._today())
        ELSE
            -- expand: claim_new(bucket => bucket)
        END IF;
        IF FOUND THEN
            counted := nextval('once.counted_new');     -- an assignment starts no query
            RETURN ROW('new_claim', fence, 'processing', NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                       now + lease, 1, traceparent)::once.claimed;
        END IF;
    END IF;

    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND day IN ('closed', 'missing') THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    IF stored.state IS NULL THEN
        IF day = 'open' THEN
            PERFORM once._refuse_read_only(tenant, scope, key);
        END IF;
        answer.verdict := CASE day WHEN 'open' THEN 'processing_active' WHEN 'closed' THEN 'expired' ELSE day END;
        PERFORM once._count(answer.verdict);
        RETURN answer;
    END IF;

    IF takeover IS NOT NULL AND policy.on_stale <> 'verify' THEN
        policy.on_stale := CASE WHEN takeover THEN 'takeover' ELSE 'in_doubt' END;
    END IF;
    answer.verdict := once._verdict(once._same(stored.fingerprint, stored.redirects, fingerprint), stored.state,
                             stored.lease_until, now, stored.attempts, policy.max_attempts, policy.on_stale);
    -- A doubt that was reported without an answer keeps its lease: until that has passed its attempt may still be at work. A doubt that
    -- was not reported has no lease and no answer: its attempt only fell silent.
    IF stored.state = 'in_doubt' AND answer.verdict = 'in_doubt' AND (stored.lease_until > now) IS NOT TRUE
       AND (policy.on_stale = 'verify'
            OR (takeover AND stored.error_code = 'stale' AND stored.lease_until IS NULL AND stored.response_status IS NULL
                AND (stored.attempts >= policy.max_attempts) IS NOT TRUE))
       AND once._day_state(bucket) = 'open' AND current_setting('transaction_read_only') = 'off' THEN
        answer.verdict := CASE policy.on_stale WHEN 'verify' THEN 'verify' ELSE 'processing_stale' END;
    END IF;
    IF answer.verdict IN ('retryable_failure', 'processing_stale', 'verify', 'abandoned')
       OR (answer.verdict = 'in_doubt' AND stored.state = 'processing') THEN
        -- Check again: the look-up has locked the day's table since, so that it is not being closed now.
        day := once._day_state(bucket);
        IF day = 'closed' THEN
            PERFORM once._refuse_outdated(tenant, scope, key, bucket);
        ELSIF day = 'open' THEN
            PERFORM once._refuse_read_only(tenant, scope, key);
        END IF;
        IF day <> 'open' THEN
            answer.verdict := CASE day WHEN 'closed' THEN 'expired' ELSE day END;
            PERFORM once._count(answer.verdict);
            RETURN answer;
        ELSIF NOT locked
              OR NOT once._hold(tenant, scope, key, bucket, stored.fence, stored.state, stored.lease_until) THEN
            answer.verdict := 'processing_active';     -- another session is deciding about this intent, or reporting
        ELSE
            answer.verdict := once._take_over(answer.verdict, stored, policy, claimant, lease, retention, traceparent);
            SELECT i.* INTO STRICT stored FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = bucket;
        END IF;
    END IF;

    PERFORM once._count(answer.verdict);
    IF answer.verdict = 'mismatch' THEN
        RETURN answer;     -- without any other column
    END IF;
    IF answer.verdict <> 'processing_active' THEN
        outcome := once._outcome_of(stored);
    END IF;
    RETURN ROW(answer.verdict, stored.fence, stored.state, outcome.*, stored.lease_until, stored.attempts,
               stored.traceparent)::once.claimed;
END $$;
