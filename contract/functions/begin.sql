-- SPDX-License-Identifier: PostgreSQL
-- once.begin(scope, key, fingerprint, tenant): opens an intent whose effect happens in this transaction.
--   proceed  do the effect, then once.finish(...), then COMMIT. ROLLBACK or a crash leaves no trace.
--   replay   the intent is finished: the stored outcome is in the other columns. Do not do the effect.
-- Everything else is raised, because a caller who forgets to look must not do the effect twice: P4002 another request,
-- P4029 running, P4030 failed for good, P4031 in doubt, P4041 expired, P4000 P4001 P4003 P4098 bad input. Reads only;
-- never waits. Holds the intent's advisory lock until the transaction ends.
--
-- Why it is written so: the lock is taken in a statement before the look-up, so that the look-up's snapshot (READ
-- COMMITTED) sees whatever the last holder committed. One combined test, because each PL/pgSQL expression is compiled
-- again in every transaction. The generic plan is forced: for a partitioned table the planner would otherwise plan each
-- call anew; and without sequential scans, because a plan made while the table was empty would stay one. Bucket 0 is
-- written as a constant, so that its plan locks one partition and not all. A stale or retryable row is left as it is:
-- finish() takes it over under the next fence.
CREATE FUNCTION once.begin(scope text, key text, fingerprint bytea, tenant text DEFAULT '',
    OUT verdict text, OUT state text, OUT response_status integer, OUT response_headers jsonb, OUT response_body bytea,
    OUT result_type text, OUT result_id text, OUT error_code text, OUT error_message text, OUT fence integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    locked boolean;
    stored record;
BEGIN
    IF (bucket >= 0 AND octet_length(fingerprint) BETWEEN 16 AND 64 AND length(scope) BETWEEN 1 AND 255
        AND length(tenant) <= 255 AND current_setting('role') = 'none'
        AND has_function_privilege(session_user, 'once.any_tenant()'::regprocedure, 'execute')) IS NOT TRUE THEN
        PERFORM once._check(tenant, scope, key, bucket, fingerprint);
    END IF;
    locked := pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key));
    IF bucket = 0 THEN
        SELECT i.state, i.fingerprint, i.fence, i.lease_until, i.attempts, i.response_status, i.response_headers,
            i.response_body,
               i.result_type, i.result_id, i.error_code, i.error_message INTO stored
          FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
             AND i.bucket = 0;
    ELSE
        SELECT i.state, i.fingerprint, i.fence, i.lease_until, i.attempts, i.response_status, i.response_headers,
            i.response_body,
               i.result_type, i.result_id, i.error_code, i.error_message INTO stored
          FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
             AND i.bucket = bucket;
    END IF;
    IF NOT FOUND THEN
        IF bucket <> 0 AND (bucket > date_part('epoch', clock_timestamp()) / 86400
                            OR to_regclass('once.intent_d' || bucket) IS NULL) THEN
            SELECT a.* INTO stored FROM once._archived(tenant, scope, key, bucket) AS a WHERE a.state IS NOT NULL;
            IF NOT FOUND THEN
                PERFORM once._refuse_day(tenant, scope, key, bucket);
            END IF;
        END IF;
        IF stored IS NULL THEN
            IF NOT locked THEN
                PERFORM once._refuse('P4029', tenant, scope, key);
            END IF;
            verdict := 'proceed';
            fence := 1;
            RETURN;
        END IF;
    END IF;

    IF stored.fingerprint = fingerprint AND stored.state = 'succeeded' THEN
        verdict := 'replay';
        state := 'succeeded';
        response_status := stored.response_status;
        response_headers := stored.response_headers;
        response_body := stored.response_body;
        result_type := stored.result_type;
        result_id := stored.result_id;
        error_code := stored.error_code;
        error_message := stored.error_message;
        fence := stored.fence;
        RETURN;
    END IF;
    SELECT b.* INTO verdict, state, response_status, response_headers, response_body, result_type, result_id,
        error_code, error_message, fence
      FROM once._begin_over(tenant, scope, key, bucket, fingerprint, locked, stored.state, stored.fingerprint,
          stored.fence,
                            stored.lease_until, stored.attempts) AS b;
END $$;
