-- SPDX-License-Identifier: PostgreSQL
-- once.complete_many(scope[], key[], fence[], outcome[]..., tenant): once.complete for many intents in one statement. One row per
-- element, in order: verdict 'stored', 'repeated', 'refused' (error_code P4010) or 'invalid' (its own SQLSTATE). A NULL array means that
-- all its elements are NULL. Raises only for the batch as a whole (22023, P4003).
CREATE FUNCTION once.complete_many(scope text[], key text[], fence integer[], response_status integer[] DEFAULT NULL,
    response_text text[] DEFAULT NULL, response_json jsonb[] DEFAULT NULL, response_body anyarray DEFAULT NULL::bytea[],
    response_headers jsonb[] DEFAULT NULL, result_type text[] DEFAULT NULL, result_id text[] DEFAULT NULL, tenant text DEFAULT '')
RETURNS TABLE (ord integer, verdict text, error_code text, error_message text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := cardinality(key);
    absent integer;             -- the length of a NULL array of outcomes
    dims text := array_dims(key);
    now timestamptz := clock_timestamp();
    next_state once.state[];
    stored integer[];
BEGIN
    -- expand: report_arrays(dims => CASE WHEN result_type IS NULL THEN dims ELSE array_dims(result_type) END,
    --   CASE WHEN result_id IS NULL THEN dims ELSE array_dims(result_id) END,
    --   lengths => once._length(result_type, absent), once._length(result_id, absent))
    IF size = 1 THEN        -- once._store_undated for one element; if it finds no row, once._report does, or finds out why not
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
    IF size > 1 THEN
        IF key[1] COLLATE "C" NOT LIKE '________-____-7%' THEN
            -- expand: store_done(into => once.intent_d0, bucket => 0)
        ELSIF once._match_day(key[1], once._today()) IS NOT NULL THEN
            <<all_of_today>>        -- else their rows would not be taken in the order of once._store_many
            BEGIN
                FOR n IN 2 .. size LOOP
                    EXIT all_of_today WHEN once._match_day(key[n], once._today()) IS NULL;
                END LOOP;
                -- expand: store_done(into => once.intent, bucket => once._today())
            END;
        END IF;
    END IF;
    IF (cardinality(stored) = size) IS NOT TRUE THEN
        next_state := array_fill('succeeded'::once.state, ARRAY[size]);
    END IF;
    -- expand: store_batch(refusal => P4010, rest => result_type, result_id, NULL, NULL, NULL)
END $$;
