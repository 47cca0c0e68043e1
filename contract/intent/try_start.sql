-- SPDX-License-Identifier: PostgreSQL
-- once.try_start(scope, key, fingerprint, tenant, traceparent): once.start for callers that cannot
-- use an error, since one aborts their transaction: every decision is in the row, and what is
-- raised is bad input alone (P4000 P4001 P4003, P4098, 40001).
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
    bucket integer := once._enter(tenant, scope, key, fingerprint, true);
    of_today boolean := bucket = once._today();
    stored record;
    fence integer;
    noted text;
    counted bigint;
BEGIN
    IF of_today THEN
        SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded'
                    THEN ROW('replay', 'succeeded', i.response_status, i.response_body, i.response_headers,
                             i.result_type, i.result_id, i.error_code, i.error_message, i.fence,
                             i.traceparent)::once.started
               END AS replay INTO stored
          FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = once._today();
    ELSIF bucket = 0 THEN
        SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded'
                    THEN ROW('replay', 'succeeded', i.response_status, i.response_body, i.response_headers,
                             i.result_type, i.result_id, i.error_code, i.error_message, i.fence,
                             i.traceparent)::once.started
               END AS replay INTO stored
          FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = 0;
    ELSIF bucket > 0 THEN
        SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded'
                    THEN ROW('replay', 'succeeded', i.response_status, i.response_body, i.response_headers,
                             i.result_type, i.result_id, i.error_code, i.error_message, i.fence,
                             i.traceparent)::once.started
               END AS replay INTO stored
          FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = bucket;
    END IF;
    IF FOUND THEN
        IF NOT stored.replay IS NULL THEN
            IF current_setting('transaction_read_only') = 'off' THEN
                counted := nextval('once.counted_replay');      -- an assignment starts no query
            END IF;
            RETURN stored.replay;
        END IF;
    ELSIF of_today THEN
        IF once._is_today(bucket) THEN      -- still: else the look-up may have been made on another day
            fence := 1;
        END IF;
    ELSIF bucket = 0 THEN
        fence := once._first_fence();
    ELSIF once._is_open(bucket) THEN
        fence := 1;
    END IF;
    IF fence = 1 THEN
        noted := once._note_start(tenant, scope, key, '1');
        IF traceparent IS NULL THEN
            RETURN once._proceed();
        END IF;
    ELSIF fence > 1 THEN
        noted := once._note_start(tenant, scope, key, fence::text);
    ELSE
        RETURN once._start_over(tenant, scope, key, fingerprint, traceparent, false);
    END IF;
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, fence, traceparent)::once.started;
END $$;
