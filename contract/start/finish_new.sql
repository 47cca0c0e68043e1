-- SPDX-License-Identifier: PostgreSQL
-- once.finish_new(scope, key, fingerprint, outcome..., state, tenant, traceparent): once.start and once.finish in one call, for pipelines
-- that know the outcome before the effect. Send it first: it aborts all statements queued behind it unless the effect may run, and it
-- commits or rolls back with the effect. Returns the fence; raises the errors of both functions, including P4020 for a replay.
--
-- Why it is written so: the hot path is that of start and of finish, with one check; those two functions handle the other cases. It looks
-- before it inserts, because ON CONFLICT alone would wait for a report of this intent in an open transaction. In READ COMMITTED the
-- INSERT is plain: the look-up was made under the lock and saw everything committed before, so there can be no conflict, and ON CONFLICT
-- costs 15,000 instructions. An older snapshot may have missed a row: then it raises 40001.
CREATE FUNCTION once.finish_new(scope text, key text, fingerprint bytea, response_status integer DEFAULT NULL,
    response_text text DEFAULT NULL, response_json jsonb DEFAULT NULL, response_body anynonarray DEFAULT NULL::bytea,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    state text DEFAULT 'succeeded',
    error_code text DEFAULT NULL, error_message text DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL)
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer;
    now timestamptz := clock_timestamp();
    fence integer;
    started once.started;
    stored bytea;
BEGIN
    -- expand: outcome_arguments()
    -- The check for the usual arguments, in one expression for each kind of key; once._check_and_lock for the others.
    IF key COLLATE "C" LIKE '________-____-7___-____-____________' THEN
        bucket := CASE WHEN once._quick_check(tenant, scope, fingerprint) AND once._is_trusted(tenant) AND once._is_dated(key)
                            AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN once._match_day(key, once._today()) END;
    ELSE
        bucket := CASE WHEN once._quick_check(tenant, scope, fingerprint) AND once._is_trusted(tenant) AND once._is_undated(key)
                            AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN 0 END;
    END IF;
    IF bucket IS NULL THEN
        bucket := once._check_and_lock(tenant, scope, key, fingerprint, true);
    END IF;
    IF bucket = once._today() THEN
        PERFORM FROM once.intent AS i
          WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
            AND i.bucket = once._today();
        fence := CASE WHEN NOT FOUND AND once._is_first(state, response_status, response_body, result_type, result_id)
                           AND once._is_today(bucket) THEN 1 END;       -- see once.start
    ELSIF bucket = 0 THEN
        PERFORM FROM once.intent AS i
          WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
            AND i.bucket = 0;
        fence := CASE WHEN NOT FOUND AND once._is_first(state, response_status, response_body, result_type, result_id)
                      THEN once._first_fence() END;
    ELSIF bucket > 0 THEN
        PERFORM FROM once.intent AS i
          WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
            AND i.bucket = bucket;
        fence := CASE WHEN NOT FOUND AND once._is_first(state, response_status, response_body, result_type, result_id)
                           AND once._is_open(bucket) THEN 1 END;
    END IF;
    IF response_headers IS NOT NULL THEN
        IF jsonb_typeof(response_headers) <> 'object' OR octet_length(response_headers::text) > 65536 THEN
            fence := NULL;
        END IF;
    END IF;
    IF fence IS NOT NULL AND current_setting('transaction_isolation') = 'read committed' THEN
        -- expand: insert_outcome(bucket => bucket, fence => fence, then => ;)
        RETURN CASE WHEN nextval('once.counted_new') IS NOT NULL THEN fence END;        -- counts it
    ELSIF fence IS NOT NULL THEN
        -- expand: insert_outcome(bucket => bucket, fence => fence, then => ON CONFLICT DO NOTHING;)
        IF FOUND AND nextval('once.counted_new') IS NOT NULL THEN
            RETURN fence;
        END IF;
    END IF;
    started := once.start(scope, key, fingerprint, tenant);
    IF started.verdict <> 'proceed' THEN
        PERFORM once._refuse('P4020', tenant, scope, key);
    END IF;
    stored := once.finish(scope, key, fingerprint, response_status, NULL, NULL, response_body, response_headers, result_type,
        result_id, state, error_code, error_message, tenant, traceparent);
    RETURN started.fence;
END $$;
