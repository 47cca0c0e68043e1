-- SPDX-License-Identifier: PostgreSQL
-- once.resolve_seen(scope, key, seen_fence, seen_state, as_state, reason, outcome..., tenant, dry_run): once.resolve, if the intent's
-- fence and state are still those that the operator has seen: of two who decide at once the second changes nothing, and is told about the
-- first. Returns one JSON document: decided; fence and state, as they are now; and why it was not decided: 'changed', 'running' (an
-- attempt or another decision holds the intent), 'gone' (nothing is stored), NULL if it was or would be; first: the latest decision on
-- it since then, as once.story shows it. It waits up to a second for another decision. A dry run, the default, changes nothing. Raises
-- 22023 for a missing reason or state, P4070 as once.resolve does, P4060, P4000, P4001, P4003.
CREATE FUNCTION once.resolve_seen(scope text, key text, seen_fence integer, seen_state text, as_state text, reason text,
    response_status integer DEFAULT NULL, response_text text DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    tenant text DEFAULT '', dry_run boolean DEFAULT true) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    stored once.intent;
    first jsonb;
    why text;
    decided boolean := false;
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    IF (btrim(reason) <> '') IS NOT TRUE OR seen_fence IS NULL OR dry_run IS NULL
       OR (as_state IN ('succeeded', 'failed_retryable', 'failed_final')) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the reason, the fence or the decision is missing or unknown',
            DETAIL = format('as_state=%s: one of succeeded, failed_retryable, failed_final', quote_nullable(left(as_state, 80))),
            HINT = 'Say how the outcome is known, and pass fence and state as they were shown.';
    END IF;
    PERFORM once._check_outcome(tenant, scope, key, ROW(response_status, convert_to(response_text, 'UTF8'), NULL, result_type, result_id,
        NULL, NULL)::once.outcome);
    IF NOT dry_run THEN
        why := 'running';
        FOR n IN 1 .. 20 LOOP
            IF pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN
                why := NULL;
                EXIT;
            END IF;
            PERFORM pg_sleep(0.05);
        END LOOP;
    END IF;
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C" AND i.bucket = bucket;
    IF NOT FOUND THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    IF stored.state IS NULL THEN
        why := 'gone';
    ELSIF stored.fence <> seen_fence OR (stored.state::text = seen_state) IS NOT TRUE THEN
        why := 'changed';
        SELECT jsonb_build_object('at', d.decided_at, 'by', d.decided_by, 'reason', d.reason, 'fence', d.fence, 'from', d.from_state,
                   'to', d.to_state, 'kind', d.kind, 'before', d.before, 'after', d.after) INTO first
          FROM once.decision AS d
         WHERE d.tenant = tenant COLLATE "C" AND d.scope = scope COLLATE "C" AND d.key = key COLLATE "C" AND d.fence >= seen_fence
         ORDER BY d.decided_at DESC LIMIT 1;
    ELSIF why IS NULL AND stored.state = 'processing' AND once._is_live(stored.lease_until, clock_timestamp()) THEN
        why := 'running';
    ELSIF why IS NULL AND NOT dry_run THEN
        PERFORM once.resolve(scope => scope, key => key, as_state => as_state, reason => reason, response_status => response_status,
            response_text => response_text, result_type => result_type, result_id => result_id, tenant => tenant);
        decided := true;
        stored.fence := stored.fence + 1;
        stored.state := as_state::once.state;
    END IF;
    RETURN jsonb_build_object('decided', decided, 'why', why, 'first', first, 'fence', stored.fence, 'state', stored.state);
END $$;
