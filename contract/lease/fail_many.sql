-- SPDX-License-Identifier: PostgreSQL
-- once.fail_many(scope[], key[], fence[], retryable[], error[]..., outcome[]..., tenant, redirect[]): once.fail for many intents in
-- one statement; a NULL in retryable means in doubt. Returns as once.complete_many does, with P4011 for what is
-- refused.
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
    absent integer;             -- what a NULL array of outcomes stands for: as many NULLs
    dims text := array_dims(key);
    next_state once.state[];
    stored integer[];
BEGIN
    IF once._is_usual_batch(tenant, size, dims, array_dims(scope), array_dims(fence), array_dims(retryable),
            CASE WHEN error_code IS NULL THEN dims ELSE array_dims(error_code) END,
            CASE WHEN error_message IS NULL THEN dims ELSE array_dims(error_message) END,
            CASE WHEN response_status IS NULL THEN dims ELSE array_dims(response_status) END,
            CASE WHEN response_text IS NULL THEN dims ELSE array_dims(response_text) END,
            CASE WHEN response_json IS NULL THEN dims ELSE array_dims(response_json) END,
            CASE WHEN response_body IS NULL THEN dims ELSE array_dims(response_body) END,
            CASE WHEN response_headers IS NULL THEN dims ELSE array_dims(response_headers) END,
            CASE WHEN redirect IS NULL THEN dims ELSE array_dims(redirect) END) IS NOT TRUE THEN
        absent := coalesce(size, 0);
        size := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0), once._length(fence, 0),
            once._length(retryable, 0), once._length(error_code, absent), once._length(error_message, absent),
            once._length(response_status, absent), once._length(response_text, absent), once._length(response_json, absent),
            once._length(response_body, absent),
            once._length(response_headers, absent), once._length(redirect, absent));
    END IF;
    IF pg_typeof(response_body) <> 'bytea[]'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, NULL, NULL, pg_typeof(response_body));
    END IF;
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        response_body := once._bodies(response_text, response_json, response_body);
    END IF;
    next_state := ARRAY(SELECT CASE retryable[n] WHEN true THEN 'failed_retryable'
                                                 WHEN false THEN 'failed_final'
                                                 ELSE 'in_doubt' END::once.state
                          FROM generate_series(1, size) AS n);
    IF size > 1 THEN
        stored := once._store_many(tenant, scope, key, fence, next_state, response_status, response_body, response_headers,
                                   NULL, NULL, error_code, error_message, redirect);
        IF cardinality(stored) = size THEN
            verdict := 'stored';
            FOR n IN 1 .. size LOOP
                ord := n;
                RETURN NEXT;
            END LOOP;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY SELECT r.ord, r.verdict, r.refused_code, r.refused_message
      FROM once._report_many('P4011', stored, scope, key, fence, next_state, response_status, response_body, response_headers,
                             NULL, NULL, error_code, error_message, tenant, redirect) AS r;
END $$;
