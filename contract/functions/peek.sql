-- SPDX-License-Identifier: PostgreSQL
-- once.peek(scope, key, tenant): what is stored of an intent; changes nothing, locks nothing. verdict:
-- 'replay_success', 'final_failure', 'retryable_failure', 'processing_active', 'processing_stale', 'in_doubt',
-- 'expired' (its day is retired), or 'absent': nothing is stored (an attempt in an open transaction does not show).
-- Raises P4000, P4001, P4003.
CREATE FUNCTION once.peek(scope text, key text, tenant text DEFAULT '',
    OUT verdict text, OUT fence integer, OUT state text, OUT response_status integer, OUT response_headers jsonb,
    OUT response_body bytea,
    OUT result_type text, OUT result_id text, OUT error_code text, OUT error_message text, OUT owner text,
    OUT lease_until timestamptz,
    OUT attempts integer, OUT created_at timestamptz, OUT completed_at timestamptz, OUT traceparent text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    SELECT p.* INTO verdict, fence, state, response_status, response_headers, response_body, result_type, result_id,
        error_code, error_message,
                    owner, lease_until, attempts, created_at, completed_at, traceparent
      FROM once._peek(tenant, scope, key, bucket) AS p;
END $$;
