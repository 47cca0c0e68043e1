-- SPDX-License-Identifier: PostgreSQL
-- once._store_verified(...): stores the outcome of an attempt that is stale or in doubt after a verify function answered that its effect
-- happened. The caller holds the row (once._hold).
CREATE FUNCTION once._store_verified(tenant text, scope text, key text, bucket integer, fence integer, verified once.verification)
RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    was timestamptz := clock_timestamp();
    stored once.intent;
    outcome once.outcome := once._outcome_of(verified);
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    UPDATE once.intent AS i
       SET state = 'succeeded', updated_at = was, completed_at = was, lease_until = NULL,
           (response_status, response_body, response_headers, result_type, result_id, error_code, error_message)
               = ROW(outcome.*)
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fence = fence AND i.state IN ('processing', 'in_doubt');
    PERFORM once._record(tenant, scope, key, fence, stored.state, 'succeeded', 'verify: the effect happened',
        'verify', stored);
END $$;
