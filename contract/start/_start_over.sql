-- SPDX-License-Identifier: PostgreSQL
-- once._start_over(tenant, scope, key, fingerprint, traceparent, raising): the thorough half of once.start, for the cases that its hot
-- path does not handle: a row that is not a plain replay, a lock that another attempt has, a day that is not plainly open. Decides by the
-- scope's policy whether this attempt may run. If it may not: raises, or returns the name of the error (once.errors) as the verdict. The
-- arguments are already checked. A stale or retryable row stays as it is: once.finish takes it over under the next fence.
CREATE FUNCTION once._start_over(tenant text, scope text, key text, fingerprint bytea, traceparent text, raising boolean)
RETURNS once.started LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    locked boolean := pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key));
    policy once.scope := once._policy(scope);
    answer once.started;
    outcome once.outcome;
    stored once.intent;
    verified once.verification;
    judged text := 'new';
    code text;              -- why this attempt may not run; NULL: it may, or there is an answer
    why text;
    noted text;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND bucket <> 0 THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    IF stored.state IS NOT NULL THEN
        judged := once._verdict(once._same(stored.fingerprint, stored.redirects, fingerprint), stored.state,
            stored.lease_until, clock_timestamp(), stored.attempts, policy.max_attempts, policy.on_stale);
        IF judged NOT IN ('retryable_failure', 'processing_stale', 'verify') THEN
            PERFORM once._count(judged);
        END IF;
    END IF;

    CASE judged
        WHEN 'replay_success' THEN NULL;
        WHEN 'mismatch' THEN code := 'P4002';
        WHEN 'final_failure' THEN
            code := 'P4030';
            why := concat_ws(': ', stored.error_code, stored.error_message);
        WHEN 'abandoned' THEN
            code := 'P4030';
            why := once._abandoned(stored);
        WHEN 'in_doubt' THEN
            code := 'P4031';
            why := CASE WHEN stored.state = 'processing' THEN format('attempt %s ended without a report', stored.fence) END;
        WHEN 'processing_active' THEN
            code := 'P4029';
            why := format('its lease ends at %s', stored.lease_until);
        WHEN 'new' THEN
            IF once._open_day(bucket) = 'closed' AND NOT raising THEN
                PERFORM once._count('expired');
                code := 'P4041';
            ELSE
                PERFORM once._refuse_day(tenant, scope, key, bucket);
            END IF;
            IF code IS NULL AND NOT locked THEN
                PERFORM once._count('active');
                code := 'P4029';
            END IF;
        WHEN 'retryable_failure', 'processing_stale', 'verify' THEN
            IF once._day_state(bucket) = 'closed' THEN                  -- it may not run again
                PERFORM once._refuse_outdated(tenant, scope, key, bucket);
                IF NOT raising THEN
                    PERFORM once._count('expired');
                    code := 'P4041';
                END IF;
            END IF;
            IF code IS NULL THEN
                PERFORM once._refuse_day(tenant, scope, key, bucket);
                IF NOT locked THEN
                    code := 'P4029';
                    why := 'another attempt is taking it over';
                ELSIF NOT once._hold(tenant, scope, key, bucket, stored.fence, stored.state, stored.lease_until) THEN
                    code := 'P4029';
                    why := 'its attempt is reporting right now';
                END IF;
                IF code = 'P4029' THEN
                    PERFORM once._count('active');
                END IF;
            END IF;
        ELSE PERFORM once._refuse('P4099', tenant, scope, key, format('state=%s verdict=%s', stored.state, judged));
    END CASE;

    IF code IS NULL AND judged = 'verify' THEN      -- held, and may run unless verify finds that the effect happened
        IF raising THEN
            verified := once._verify(policy, tenant, scope, key);
        ELSE                                        -- an exception is a doubt like any other
            SELECT (a.verified).* INTO verified FROM once._ask(policy, tenant, scope, key) AS a;
        END IF;
        IF verified.answer = 'unknown' OR (verified.answer = 'absent' AND stored.attempts >= policy.max_attempts) THEN
            PERFORM once._count('in_doubt');
            code := 'P4031';
            why := format('verify answered %s', verified.answer);
        ELSIF verified.answer = 'happened' THEN
            PERFORM once._store_verified(tenant, scope, key, bucket, stored.fence, verified);
            PERFORM once._count('replay');
            SELECT i.* INTO STRICT stored FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = bucket;
            judged := 'replay_success';
        END IF;
    END IF;

    IF code IS NULL AND judged <> 'replay_success' THEN
        IF stored.state IS NOT NULL THEN
            PERFORM once._count(CASE judged WHEN 'verify' THEN 'retryable' ELSE judged END);
        END IF;
        answer.verdict := 'proceed';
        answer.fence := CASE WHEN stored.state IS NOT NULL THEN stored.fence + 1 WHEN bucket > 0 THEN 1 ELSE once._first_fence() END;
        answer.traceparent := coalesce(stored.traceparent, once._trace(traceparent));
        noted := once._note_start(tenant, scope, key, fingerprint, answer.fence::text);
        RETURN answer;
    ELSIF raising AND code IS NOT NULL THEN
        PERFORM once._refuse(code, tenant, scope, key, why);
    END IF;
    answer.verdict := CASE WHEN code IS NULL THEN 'replay_success' WHEN code = 'P4029' THEN 'processing_active'
                           ELSE (SELECT e.name FROM once.errors() AS e WHERE e.code = code COLLATE "C") END;
    IF code IS DISTINCT FROM 'P4002' THEN           -- else the row is another request's, and is not shown
        answer.state := stored.state;
        answer.fence := stored.fence;
        answer.traceparent := stored.traceparent;
    END IF;
    IF judged = 'abandoned' THEN
        outcome := ROW(NULL, NULL, NULL, NULL, NULL, 'abandoned', why);
    ELSIF code IS NULL OR code = 'P4030' THEN
        outcome := once._outcome_of(stored);
    END IF;
    RETURN ROW(answer.verdict, answer.state, outcome.*, answer.fence, answer.traceparent)::once.started;
END $$;
