-- SPDX-License-Identifier: PostgreSQL
-- once.resolve(scope, key, as_state, reason, outcome..., tenant): an operator's decision on an intent that is in doubt, stale, or failed
-- retryably: as_state is 'succeeded' (the effect happened; give its outcome), 'failed_retryable' (it did not; the next attempt may run)
-- or 'failed_final' (it did not and must not). Raises the fence, which shuts out a zombie of the old attempt. Records in once.decision
-- who decided and why. Returns the state before. A lease that ends in more than 8 days, longer than any lease is, was taken while the
-- clock was ahead, and counts as passed. Raises P4070 if the intent is running, finished or unknown, or the reason is missing; P4060,
-- P4000, P4001, P4003.
CREATE FUNCTION once.resolve(scope text, key text, as_state text, reason text, response_status integer DEFAULT NULL,
    response_text text DEFAULT NULL, response_json jsonb DEFAULT NULL, response_body anynonarray DEFAULT NULL::bytea,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL, error_code text DEFAULT NULL,
    error_message text DEFAULT NULL, tenant text DEFAULT '') RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    now timestamptz := clock_timestamp();
    stored once.intent;
    source regclass := 'once.intent';
    outcome once.outcome;
BEGIN
    IF pg_typeof(response_body) <> 'bytea'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, scope, key, pg_typeof(response_body));
    END IF;
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        response_body := once._body(tenant, scope, key, response_text, response_json, response_body);
    END IF;
    outcome := ROW(response_status, response_body, response_headers, result_type, result_id, left(error_code, 255),
        left(error_message, 4096));
    PERFORM once._check_outcome(tenant, scope, key, outcome);
    IF (btrim(reason) <> '') IS NOT TRUE THEN
        PERFORM once._refuse('P4070', tenant, scope, key, 'the reason is missing');
    ELSIF (as_state IN ('succeeded', 'failed_retryable', 'failed_final')) IS NOT TRUE THEN
        PERFORM once._refuse('P4070', tenant, scope, key,
            format('as_state=%s: one of succeeded, failed_retryable, failed_final', quote_nullable(as_state)));
    ELSIF NOT pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN
        PERFORM once._refuse('P4070', tenant, scope, key, 'an attempt is running right now');
    END IF;
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND THEN
        stored := once._archived(tenant, scope, key, bucket);
        source := 'once.archive';
    END IF;
    IF stored.state IS NULL THEN
        PERFORM once._refuse('P4070', tenant, scope, key, 'there is no such intent');
    ELSIF stored.state = 'processing' AND once._is_live(stored.lease_until, now) THEN
        PERFORM once._refuse('P4070', tenant, scope, key, format('an attempt is running: its lease ends at %s',
            stored.lease_until));
    ELSIF NOT EXISTS (SELECT FROM once.transition AS t WHERE t.from_state = stored.state AND t.event = 'resolve'
        AND t.to_state = as_state::once.state) THEN
        PERFORM once._refuse('P4070', tenant, scope, key, format('the intent is %s', stored.state));
    END IF;
    IF NOT once._decide(source, stored, as_state::once.state, reason, 'resolve', outcome) THEN
        PERFORM once._refuse('P4070', tenant, scope, key, CASE source WHEN 'once.intent'::regclass
            THEN 'its attempt is reporting right now' ELSE 'it is being moved to the archive right now' END);
    END IF;
    RETURN stored.state;
END $$;
