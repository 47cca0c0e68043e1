-- SPDX-License-Identifier: PostgreSQL
-- once.fail_many(scope[], key[], fence[], retryable[], error[]..., outcome[]..., tenant, redirect[]): once.fail for many intents in one
-- statement; a NULL in retryable means in doubt. Returns as once.complete_many does, with P4011 for a refused report.
CREATE FUNCTION once.fail_many(scope text[], key text[], fence integer[], retryable boolean[], error_code text[] DEFAULT NULL,
    error_message text[] DEFAULT NULL, response_status integer[] DEFAULT NULL, response_text text[] DEFAULT NULL,
    response_json jsonb[] DEFAULT NULL, response_body anyarray DEFAULT NULL::bytea[], response_headers jsonb[] DEFAULT NULL,
    tenant text DEFAULT '', redirect bytea[] DEFAULT NULL)
RETURNS TABLE (ord integer, verdict text, refused_code text, refused_message text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := cardinality(key);
    absent integer;             -- the length of a NULL array of outcomes
    dims text := array_dims(key);
    next_state once.state[];
    stored integer[];
BEGIN
    -- expand: report_arrays(dims => array_dims(retryable), CASE WHEN error_code IS NULL THEN dims ELSE array_dims(error_code) END,
    --   CASE WHEN error_message IS NULL THEN dims ELSE array_dims(error_message) END,
    --   CASE WHEN redirect IS NULL THEN dims ELSE array_dims(redirect) END,
    --   lengths => once._length(retryable, 0), once._length(error_code, absent), once._length(error_message, absent),
    --   once._length(redirect, absent))
    next_state := ARRAY(SELECT CASE retryable[n] WHEN true THEN 'failed_retryable'
                                                 WHEN false THEN 'failed_final'
                                                 ELSE 'in_doubt' END::once.state
                          FROM generate_series(1, size) AS n);
    -- expand: store_batch(refusal => P4011, rest => NULL, NULL, error_code, error_message, redirect)
END $$;
