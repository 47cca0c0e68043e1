-- SPDX-License-Identifier: PostgreSQL
-- once.fail(scope, key, fence, retryable, error..., outcome..., tenant, redirect): stores that a claimed intent failed. retryable:
--   true   certainly no effect: the next attempt may run. An attempt that took over from a silent one (processing_stale) reports this for
--          that one as well
--   false  failed for good: retries get this outcome
--   NULL   the outcome is unknown: in doubt. The next claim asks the scope's verify function: at once if a response_status shows that the
--          work has ended, otherwise after the lease, since the work may still go on
-- redirect, with retryable true: the fingerprint of the request that the answer sends the caller to (HTTP's 307 and 308). From then on
-- that request is this intent, too: it may run, and both requests get its outcome. An error_code is cut to 255 characters, an
-- error_message to 4096.
--
-- Returns as once.complete does. Raises P4011 if the fence is lost or the intent has another outcome; P4060, P4000 P4001 P4003.
CREATE FUNCTION once.fail(scope text, key text, fence integer, retryable boolean, error_code text DEFAULT NULL,
    error_message text DEFAULT NULL, response_status integer DEFAULT NULL, response_text text DEFAULT NULL,
    response_json jsonb DEFAULT NULL, response_body anynonarray DEFAULT NULL::bytea, response_headers jsonb DEFAULT NULL,
    tenant text DEFAULT '', redirect bytea DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    next_state once.state := CASE retryable WHEN true THEN 'failed_retryable' WHEN false
        THEN 'failed_final' ELSE 'in_doubt' END;
    outcome once.outcome;
    reported text;
BEGIN
    IF pg_typeof(response_body) <> 'bytea'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, scope, key, pg_typeof(response_body));
    END IF;
    PERFORM once._check(tenant, scope, key, bucket, coalesce(redirect, E'\\x00000000000000000000000000000000'));
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        response_body := once._body(tenant, scope, key, response_text, response_json, response_body);
    END IF;
    outcome := ROW(response_status, response_body, response_headers, NULL, NULL, left(error_code, 255), left(error_message, 4096));
    IF NOT once._is_plain(response_status, response_body, response_headers, NULL, NULL) THEN
        PERFORM once._check_outcome(tenant, scope, key, outcome);
    END IF;
    reported := once._report(tenant, scope, key, bucket, fence, next_state, outcome, redirect);
    IF reported = 'refused' THEN
        PERFORM once._refuse_report('P4011', tenant, scope, key, bucket, fence);
    END IF;
    RETURN reported = 'stored';
END $$;
