-- SPDX-License-Identifier: PostgreSQL
-- once._report(...): an attempt reports how its work ended: the common core of complete, fail and their batches. Stores
-- the outcome where the fence is current and the intent is processing or in doubt (the attempt itself knows best), even
-- if the lease has passed, as long as nobody took over. Returns 'stored', 'repeated' where this very outcome is stored
-- already under this fence, or 'refused'. No advisory lock: the fence in the WHERE clause is the guard, and a duplicate
-- that is merely looking cannot hold up the one report that matters. Waits only for another change of the same row,
-- which is one short transaction of the contract. A doubt without an answer keeps its lease, since the work may go on: until it
-- has passed no verify function is asked.
CREATE FUNCTION once._report(tenant text, scope text, key text, bucket integer, fence integer, next_state once.state,
    response_status integer,
    response_body bytea, response_headers jsonb, result_type text, result_id text, error_code text, error_message text)
RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored once.intent;
BEGIN
    UPDATE once.intent AS i
       SET state = next_state, updated_at = now, completed_at = CASE WHEN next_state <> 'in_doubt' THEN now END,
           lease_until = CASE WHEN next_state = 'in_doubt' AND response_status IS NULL THEN i.lease_until END,
           response_status = response_status, response_headers = response_headers, response_body = response_body,
           result_type = result_type, result_id = result_id, error_code = error_code, error_message = error_message
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fence = fence AND (i.state = 'processing' OR (i.state = 'in_doubt' AND next_state <> 'in_doubt'));
    IF FOUND THEN
        RETURN 'stored';
    END IF;
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF stored.fence = fence AND stored.state = next_state
       AND stored.response_status IS NOT DISTINCT FROM response_status
       AND stored.response_body IS NOT DISTINCT FROM response_body
       AND stored.response_headers IS NOT DISTINCT FROM response_headers
       AND stored.result_type IS NOT DISTINCT FROM result_type AND stored.result_id IS NOT DISTINCT FROM result_id
       AND stored.error_code IS NOT DISTINCT FROM error_code
       AND stored.error_message IS NOT DISTINCT FROM error_message THEN
        RETURN 'repeated';
    END IF;
    RETURN 'refused';
END $$;
