-- SPDX-License-Identifier: PostgreSQL
-- once.complete_many(scope[], key[], fence[], outcome[]..., tenant): once.complete for many intents in one statement.
-- One row per element, in order: verdict 'stored', 'repeated', 'refused' (error_code P4010) or 'invalid' (its own
-- SQLSTATE). An array that is NULL stands for all NULL. Raises only for the batch as a whole (22023, P4003).
CREATE FUNCTION once.complete_many(scope text[], key text[], fence integer[], response_status integer[] DEFAULT NULL,
    response_text text[] DEFAULT NULL, response_json jsonb[] DEFAULT NULL, response_body anyarray DEFAULT NULL::bytea[],
    response_headers jsonb[] DEFAULT NULL, result_type text[] DEFAULT NULL, result_id text[] DEFAULT NULL, tenant text DEFAULT '')
RETURNS TABLE (ord integer, verdict text, error_code text, error_message text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := cardinality(key);
    absent integer;             -- what a NULL array of outcomes stands for: as many NULLs
    dims text := array_dims(key);
    now timestamptz := clock_timestamp();
    next_state once.state[];
    stored integer[];
BEGIN
    IF once._is_usual_batch(tenant, size, dims, array_dims(scope), array_dims(fence), CASE WHEN response_status IS NULL THEN dims
            ELSE array_dims(response_status) END, CASE WHEN response_text IS NULL THEN dims ELSE array_dims(response_text) END,
            CASE WHEN response_json IS NULL THEN dims ELSE array_dims(response_json) END,
            CASE WHEN response_body IS NULL THEN dims ELSE array_dims(response_body) END,
            CASE WHEN response_headers IS NULL THEN dims ELSE array_dims(response_headers) END,
            CASE WHEN result_type IS NULL THEN dims ELSE array_dims(result_type) END,
            CASE WHEN result_id IS NULL THEN dims ELSE array_dims(result_id) END) IS NOT TRUE THEN
        absent := coalesce(size, 0);
        size := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0), once._length(fence, 0),
            once._length(response_status, absent), once._length(response_text, absent), once._length(response_json, absent),
            once._length(response_body, absent),
            once._length(response_headers, absent), once._length(result_type, absent), once._length(result_id, absent));
    END IF;
    IF pg_typeof(response_body) <> 'bytea[]'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, NULL, NULL, pg_typeof(response_body));
    END IF;
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        response_body := once._bodies(response_text, response_json, response_body);
    END IF;
    IF size = 1 THEN        -- it is once._store_undated's, for one alone; where it finds nothing, once._report does, or knows why not
        IF key[1] COLLATE "C" NOT LIKE '________-____-7%' AND scope[1] IS NOT NULL
           AND once._is_plain(response_status[1], response_body[1], response_headers[1], result_type[1], result_id[1]) THEN
            UPDATE once.intent_d0 AS i
               SET state = 'succeeded', updated_at = now, completed_at = now, lease_until = NULL, response_status = response_status[1],
                   response_body = response_body[1], response_headers = response_headers[1], result_type = result_type[1],
                   result_id = result_id[1], error_code = NULL, error_message = NULL
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[1] COLLATE "C" AND i.key = key[1] COLLATE "C" AND i.bucket = 0
               AND i.fence = fence[1] AND i.state IN ('processing', 'in_doubt');
            IF FOUND THEN
                ord := 1;
                verdict := 'stored';
                RETURN NEXT;
                RETURN;
            END IF;
        END IF;
    END IF;
    next_state := array_fill('succeeded'::once.state, ARRAY[size]);
    IF size > 1 THEN
        stored := once._store_many(tenant, scope, key, fence, next_state, response_status, response_body, response_headers,
                                   result_type, result_id, NULL, NULL, NULL);
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
      FROM once._report_many('P4010', stored, scope, key, fence, next_state, response_status, response_body, response_headers,
                             result_type, result_id, NULL, NULL, tenant, NULL) AS r;
END $$;
