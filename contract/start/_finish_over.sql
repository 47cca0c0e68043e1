-- SPDX-License-Identifier: PostgreSQL
-- once._finish_over(...): finishes an intent that already has a row: left by a leased attempt that failed retryably or whose lease has
-- passed, and taken over by once.start under this fence. The WHERE clause is the whole guard: if that attempt has reported or renewed
-- since, it finds no row.
CREATE FUNCTION once._finish_over(tenant text, scope text, key text, bucket integer, fingerprint bytea, state text,
    outcome once.outcome, traceparent text) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    fence integer := once._start_of(tenant, scope, key, bucket, fingerprint);
    now timestamptz := clock_timestamp();
    stored record;
    before once.intent;
BEGIN
    SELECT i.* INTO before FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    UPDATE once.intent AS i
       SET state = state::once.state, fence = fence, attempts = i.attempts + 1, updated_at = now, completed_at = now,
           owner = NULL, lease_until = NULL, traceparent = coalesce(i.traceparent, traceparent),
           (response_status, response_body, response_headers, result_type, result_id, error_code, error_message)
               = ROW(outcome.*)
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND once._same(i.fingerprint, i.redirects, fingerprint) AND i.fence = fence - 1
       AND (i.state = 'failed_retryable' OR (i.state = 'processing' AND i.lease_until <= now));
    IF FOUND THEN
        PERFORM once._record_attempt(before, state::once.state, NULL);
        RETURN;
    END IF;
    SELECT i.state, i.fingerprint, i.redirects, i.fence INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT once._same(stored.fingerprint, stored.redirects, fingerprint) THEN
        PERFORM once._refuse('P4002', tenant, scope, key);
    END IF;
    PERFORM once._refuse('P4010', tenant, scope, key, format('the intent is %s, fence %s', stored.state, stored.fence));
END $$;
