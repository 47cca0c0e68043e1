-- SPDX-License-Identifier: PostgreSQL
-- once.peek(scope, key, tenant): the stored state of an intent; changes nothing, locks nothing. verdict: 'replay_success',
-- 'final_failure', 'retryable_failure', 'processing_active', 'processing_stale', 'in_doubt', 'expired' (its day is retired), or 'absent':
-- nothing is stored (an attempt in an open transaction does not show). once.peeked is (verdict, fence, state, response_status,
-- response_body, response_headers, result_type, result_id, error_code, error_message, owner, lease_until, attempts, created_at,
-- completed_at, traceparent). Raises P4000, P4001, P4003.
CREATE FUNCTION once.peek(scope text, key text, tenant text DEFAULT '') RETURNS once.peeked
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    RETURN once._peek(tenant, scope, key, bucket);
END $$;
