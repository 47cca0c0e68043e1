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
-- Written as start is, for the same reasons: the hot path for an intent that is new or has succeeded,
-- once._start_over for the rest.
CREATE FUNCTION once.try_start(scope text, key text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS once.started
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._enter(tenant, scope, key, fingerprint, true);
    stored record;
    fence integer;
    noted text;
    counted bigint;
BEGIN
    IF bucket > 0 THEN
        SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded'
                    THEN ROW('replay', 'succeeded', i.response_status, i.response_body, i.response_headers,
                             i.result_type, i.result_id, i.error_code, i.error_message, i.fence,
                             i.traceparent)::once.started
               END AS replay INTO stored
          FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = bucket;
    ELSIF bucket = 0 THEN
        SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded'
                    THEN ROW('replay', 'succeeded', i.response_status, i.response_body, i.response_headers,
                             i.result_type, i.result_id, i.error_code, i.error_message, i.fence,
                             i.traceparent)::once.started
               END AS replay INTO stored
          FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = 0;
    END IF;
    IF FOUND THEN
        IF NOT stored.replay IS NULL THEN
            IF current_setting('transaction_read_only') = 'off' THEN
                counted := nextval('once.counted_replay');      -- an assignment starts no query
            END IF;
            RETURN stored.replay;
        END IF;
    ELSIF bucket = 0 OR once._is_open(bucket) THEN
        IF traceparent IS NOT NULL THEN
            traceparent := once._trace(traceparent);
        END IF;
        IF bucket > 0 THEN
            noted := once._note_start(tenant, scope, key, '1');
            RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, traceparent)::once.started;
        END IF;
        fence := once._first_fence();
        noted := once._note_start(tenant, scope, key, fence::text);
        RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, fence, traceparent)::once.started;
    END IF;
    RETURN once._start_over(tenant, scope, key, fingerprint, traceparent, false);
END $$;
