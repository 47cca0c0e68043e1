-- SPDX-License-Identifier: PostgreSQL
-- once.try_start(scope, key, fingerprint, tenant, traceparent): once.start for callers that cannot
-- use an error, since one aborts their transaction: every decision is in the row, and what is
-- raised is bad input alone (P4000 P4001 P4003, P4014, P4098, 40001).
--   proceed        do the effect, then once.finish(...), then COMMIT
--   replay         the intent succeeded: the stored outcome is in the other columns
--   final_failure  it failed for good: the stored outcome is in the other columns. A new intent needs a new key
--   active         another attempt is running: try again after a short delay
--   in_doubt       the outcome is unknown: see once.resolve. No attempt runs
--   mismatch       the key was first used with another request
--   expired        the key is older than what is remembered
-- Look at the verdict: only 'proceed' allows the effect, and once.finish refuses all others.
--
-- Written as once.start is, for the same reasons; only what once._start_over answers for the rest differs. A test compares the two.
CREATE FUNCTION once.try_start(scope text, key text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS once.started
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    answer once.started;
    bucket integer;
    likely integer;
    fence integer;
    noted text;
    counted bigint;
BEGIN
    IF (once._is_trusted() AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key))) IS NOT TRUE THEN
        bucket := once._enter(tenant, scope, key, fingerprint, true);
        IF bucket IS NULL THEN
            RETURN once._start_over(tenant, scope, key, fingerprint, traceparent, false);
        END IF;
    END IF;
    IF key COLLATE "C" NOT LIKE '________-____-7___-____-____________' THEN
        SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded' THEN 'replay' END, 'succeeded', i.response_status,
               i.response_body, i.response_headers, i.result_type, i.result_id, i.error_code, i.error_message, i.fence, i.traceparent
          INTO answer FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = 0;
        IF FOUND THEN
            IF answer.verdict IS NOT NULL THEN
                counted := CASE WHEN current_setting('transaction_read_only') = 'off' THEN nextval('once.counted_replay') END;
                RETURN answer;
            END IF;
        ELSE
            fence := CASE WHEN once._is_undated(key) AND once._is_usual_call(tenant, scope, fingerprint) THEN once._first_fence() END;
        END IF;
    ELSE
        likely := once._within(key, once._today());
        IF likely IS NOT NULL THEN
            SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded' THEN 'replay' END, 'succeeded', i.response_status,
                   i.response_body, i.response_headers, i.result_type, i.result_id, i.error_code, i.error_message, i.fence, i.traceparent
              INTO answer FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = once._today();
            IF FOUND THEN
                IF answer.verdict IS NOT NULL THEN
                    counted := CASE WHEN current_setting('transaction_read_only') = 'off' THEN nextval('once.counted_replay') END;
                    RETURN answer;
                END IF;
            ELSE    -- still today: else the look-up may have been made on another day
                IF once._is_today(likely) AND once._is_dated(key) AND once._is_usual_call(tenant, scope, fingerprint)
                   AND once._note_first(tenant, scope, key, fingerprint, '1') IS NOT NULL THEN
                    IF traceparent IS NULL THEN
                        RETURN once._proceed();
                    END IF;
                    RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, once._trace(traceparent))::once.started;
                END IF;
                fence := CASE WHEN once._is_today(likely) AND once._is_dated(key) AND once._is_usual_call(tenant, scope, fingerprint)
                              THEN 1 END;
            END IF;
        ELSE
            bucket := coalesce(bucket, once._enter(tenant, scope, key, fingerprint, false));
            SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded' THEN 'replay' END, 'succeeded', i.response_status,
                   i.response_body, i.response_headers, i.result_type, i.result_id, i.error_code, i.error_message, i.fence, i.traceparent
              INTO answer FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = bucket;
            IF FOUND THEN
                IF answer.verdict IS NOT NULL THEN
                    counted := CASE WHEN current_setting('transaction_read_only') = 'off' THEN nextval('once.counted_replay') END;
                    RETURN answer;
                END IF;
            ELSE
                IF bucket = 0 THEN
                    fence := once._first_fence();
                ELSIF once._is_open(bucket) THEN
                    fence := 1;
                END IF;
            END IF;
        END IF;
    END IF;
    IF fence IS NULL THEN
        bucket := coalesce(bucket, once._enter(tenant, scope, key, fingerprint, false));
        RETURN once._start_over(tenant, scope, key, fingerprint, traceparent, false);
    ELSIF fence > 1 THEN
        noted := once._note_start(tenant, scope, key, fingerprint, fence::text);
    ELSE
        IF once._note_first(tenant, scope, key, fingerprint, '1') IS NULL THEN
            noted := once._note_start(tenant, scope, key, fingerprint, '1');
        END IF;
        IF traceparent IS NULL THEN
            RETURN once._proceed();
        END IF;
    END IF;
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, fence, traceparent)::once.started;
END $$;
