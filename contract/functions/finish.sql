-- SPDX-License-Identifier: PostgreSQL
-- once.finish(scope, key, fingerprint, outcome..., state, tenant, traceparent): stores the outcome of an intent that this
-- transaction began, and returns response_body, so that a function can end with RETURN once.finish(...). state is
-- 'succeeded', 'failed_final', or 'failed_retryable' (the next begin proceeds again). Raises P4010 where the intent is
-- not this transaction's to finish (a leased attempt holds it, or it is finished), P4002 for another fingerprint, P4060
-- for too large a body. 40001 where another transaction finished it first (isolation levels above READ COMMITTED, or no
-- begin): retry the transaction. Writes one row version; waits for nobody. traceparent (W3C) is stored with the intent,
-- unless an earlier attempt has left its own; a malformed one is ignored.
--
-- Why it is written so: one INSERT and no look-up; ON CONFLICT DO NOTHING turns a race under REPEATABLE READ into 40001
-- and needs no EXCEPTION block, which would start a subtransaction. Only a row left by a leased attempt makes it go
-- further. Small bodies skip the policy: response_bytes_max is never below 8192. No setting but search_path: each costs
-- a call 3,000 instructions, and an INSERT of VALUES has but one plan.
CREATE FUNCTION once.finish(scope text, key text, fingerprint bytea, response_status integer DEFAULT NULL,
    response_body bytea DEFAULT NULL,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    state text DEFAULT 'succeeded',
    error_code text DEFAULT NULL, error_message text DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL)
RETURNS bytea LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._enter(tenant, scope, key, fingerprint, true);
    now timestamptz := clock_timestamp();
BEGIN
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    IF ((bucket = 0 OR once._is_open(bucket)) AND state IN ('succeeded', 'failed_final', 'failed_retryable')
        AND octet_length(response_body) > 8192 IS NOT TRUE) IS NOT TRUE THEN
        bucket := once._check_finish(tenant, scope, key, state, response_body);
    END IF;
    INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, response_status, state,
        tenant, scope, key, fingerprint, result_type, result_id, error_code, error_message, traceparent,
        response_headers, response_body)
    VALUES (now, now, now, bucket, 1, 1, response_status, state::once.state, tenant, scope, key, fingerprint,
        result_type, result_id, error_code, error_message, traceparent, response_headers, response_body)
    ON CONFLICT DO NOTHING;
    IF FOUND AND nextval(once._counter('new', scope, 'once.counted_new')) IS NOT NULL THEN
        RETURN response_body;
    END IF;
    PERFORM once._finish_over(tenant, scope, key, bucket, fingerprint, state, response_status, response_headers,
        response_body, result_type, result_id, error_code, error_message, traceparent);
    RETURN response_body;
END $$;
