-- SPDX-License-Identifier: PostgreSQL
-- once.complete(scope, key, fence, outcome..., tenant): stores the outcome of a claimed intent that succeeded. true: stored now; false:
-- this attempt had already stored this very outcome (a report sent twice). Raises P4010 if the fence is lost or the intent has another
-- outcome: discard the result then. P4060 for an outcome that is too large, P4000 P4001 P4003 for bad input. It can run in the
-- transaction of the effect itself: then the outcome exists if and only if the effect does.
--
-- Why it is written so: an UPDATE that names a constant bucket opens one partition. It is the UPDATE of once._report, for a success; if
-- it finds no row, once._report does, or finds out why not.
CREATE FUNCTION once.complete(scope text, key text, fence integer, response_status integer DEFAULT NULL,
    response_text text DEFAULT NULL, response_json jsonb DEFAULT NULL, response_body anynonarray DEFAULT NULL::bytea,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL, tenant text DEFAULT '')
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer;
    now timestamptz := clock_timestamp();
    stored boolean;
    outcome once.outcome;
    reported text;
BEGIN
    IF pg_typeof(response_body) <> 'bytea'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, scope, key, pg_typeof(response_body));
    END IF;
    bucket := once._check_and_lock(tenant, scope, key, E'\\x00000000000000000000000000000000', false);
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        response_body := once._body(tenant, scope, key, response_text, response_json, response_body);
    END IF;
    IF NOT once._is_plain(response_status, response_body, response_headers, result_type, result_id) THEN
        PERFORM once._check_outcome(tenant, scope, key,
            ROW(response_status, response_body, response_headers, result_type, result_id, NULL, NULL));
    END IF;
    IF bucket = once._today() THEN
        UPDATE once.intent AS i
           SET state = 'succeeded', updated_at = now, completed_at = now, lease_until = NULL, response_status = response_status,
               response_body = response_body, response_headers = response_headers, result_type = result_type, result_id = result_id,
               error_code = NULL, error_message = NULL
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = once._today() AND i.fence = fence AND i.state IN ('processing', 'in_doubt');
        stored := FOUND;
    ELSIF bucket = 0 THEN
        UPDATE once.intent AS i
           SET state = 'succeeded', updated_at = now, completed_at = now, lease_until = NULL, response_status = response_status,
               response_body = response_body, response_headers = response_headers, result_type = result_type, result_id = result_id,
               error_code = NULL, error_message = NULL
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = 0 AND i.fence = fence AND i.state IN ('processing', 'in_doubt');
        stored := FOUND;
    END IF;
    IF stored THEN
        RETURN true;
    END IF;
    outcome := ROW(response_status, response_body, response_headers, result_type, result_id, NULL, NULL);
    reported := once._report(tenant, scope, key, bucket, fence, 'succeeded', outcome);
    IF reported = 'refused' THEN
        PERFORM once._refuse_report('P4010', tenant, scope, key, bucket, fence);
    END IF;
    RETURN reported = 'stored';
END $$;
