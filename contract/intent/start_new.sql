-- SPDX-License-Identifier: PostgreSQL
-- once.start_new(scope, key, fingerprint, tenant, traceparent): once.start for pipelines: returns the fence where the effect may go
-- on, and raises P4020 where start would return a replay, and whatever start raises.
-- Sent first in a pipeline, it stops everything that is queued
-- behind it. traceparent is taken for the sake of likeness: pass it to once.finish. Written as start is, for the same reasons.
CREATE FUNCTION once.start_new(scope text, key text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer;
    of_today boolean;
    started once.started;
    fence integer;
    noted text;
BEGIN
    -- The gate for what is usual, in one expression for each kind of key; once._enter for the rest.
    IF key COLLATE "C" LIKE '________-____-7___-____-____________' THEN
        bucket := CASE WHEN once._is_usual_call(tenant, scope, fingerprint) AND once._is_trusted() AND once._is_dated(key)
                            AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN once._within(key, once._today()) END;
    ELSE
        bucket := CASE WHEN once._is_usual_call(tenant, scope, fingerprint) AND once._is_trusted() AND once._is_undated(key)
                            AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN 0 END;
    END IF;
    IF bucket IS NULL THEN
        bucket := once._enter(tenant, scope, key, fingerprint, true);
    END IF;
    of_today := bucket = once._today();
    IF of_today THEN
        PERFORM FROM once.intent AS i
          WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
            AND i.bucket = once._today();
    ELSIF bucket = 0 THEN
        PERFORM FROM once.intent AS i
          WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
            AND i.bucket = 0;
    ELSIF bucket > 0 THEN
        PERFORM FROM once.intent AS i
          WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
            AND i.bucket = bucket;
    END IF;
    IF NOT FOUND AND bucket >= 0 THEN
        IF of_today THEN
            IF once._is_today(bucket) THEN
                fence := 1;
            END IF;
        ELSIF bucket = 0 THEN
            fence := once._first_fence();
        ELSIF once._is_open(bucket) THEN
            fence := 1;
        END IF;
    END IF;
    IF fence = 1 THEN
        IF once._note_first(tenant, scope, key, fingerprint, '1') IS NULL THEN
            noted := once._note_start(tenant, scope, key, fingerprint, '1');
        END IF;
        RETURN 1;
    ELSIF fence > 1 THEN
        noted := once._note_start(tenant, scope, key, fingerprint, fence::text);
        RETURN fence;
    END IF;
    started := once._start_over(tenant, scope, key, fingerprint, traceparent, true);
    IF started.verdict <> 'proceed' THEN
        PERFORM once._refuse('P4020', tenant, scope, key);
    END IF;
    RETURN started.fence;
END $$;
