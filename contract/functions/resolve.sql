-- SPDX-License-Identifier: PostgreSQL
-- once.resolve(scope, key, as_state, reason, outcome..., tenant): an operator's decision on an intent that is in doubt,
-- stale, or failed retryably: as_state is 'succeeded' (the effect happened; give its outcome), 'failed_retryable' (it
-- did not; the next attempt may run) or 'failed_final' (it did not and shall not). Raises the fence, so that a zombie
-- of the old attempt is shut out; recorded in once.decision with who and why. Returns the state before. A lease that ends in
-- more than 8 days, longer than any lease is, was taken while the clock was ahead, and counts as passed. Raises P4070
-- where the intent is running, finished or unknown, or the reason is missing; P4060, P4000, P4001, P4003.
CREATE FUNCTION once.resolve(scope text, key text, as_state text, reason text, response_status integer DEFAULT NULL,
    response_body bytea DEFAULT NULL,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    error_code text DEFAULT NULL,
    error_message text DEFAULT NULL, tenant text DEFAULT '') RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    now timestamptz := clock_timestamp();
    stored once.intent;
    source regclass := 'once.intent';
    changed bigint;
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    PERFORM once._check_size(tenant, scope, key, response_body);
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
    ELSIF source = 'once.intent'::regclass
          AND NOT once._hold(tenant, scope, key, bucket, stored.fence, stored.state, stored.lease_until) THEN
        PERFORM once._refuse('P4070', tenant, scope, key, 'its attempt is reporting right now');
    END IF;
    -- format() and not two statements: an archived row has the same columns in another table.
    EXECUTE format('UPDATE %s SET state = $1, fence = fence + 1, updated_at = $2, completed_at = $2,
                    lease_until = NULL, response_status = $3,
                    response_body = $4, response_headers = $5, result_type = $6, result_id = $7, error_code = $8,
                        error_message = $9
                    WHERE tenant = $10 AND scope = $11 AND key = $12 AND bucket = $13', source)
      USING as_state::once.state, now, response_status, response_body, response_headers, result_type, result_id,
          error_code, error_message,
            tenant, scope, key, bucket;
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed = 0 THEN
        PERFORM once._refuse('P4070', tenant, scope, key, 'it is being moved to the archive right now');
    END IF;
    PERFORM once._record(tenant, scope, key, stored.fence, stored.state, as_state::once.state, reason, 'resolve', stored);
    RETURN stored.state;
END $$;
