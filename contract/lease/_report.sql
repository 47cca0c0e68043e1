-- SPDX-License-Identifier: PostgreSQL
-- once._report(...): an attempt reports how its work ended: the common core of complete, fail and their batches. Stores the outcome if
-- the fence is current and the intent is processing or in doubt (the attempt itself knows best), even after its lease, as long as no
-- other attempt took over. Returns 'stored', 'repeated' if this very outcome is already stored under this fence, or 'refused'. Takes no
-- advisory lock: the fence in the WHERE clause is the guard, and a duplicate that only looks cannot hold up the one report that matters.
-- Waits only for another change of the same row, which is one short transaction of the contract. A doubt without an answer keeps its
-- lease, since the work may go on: until it has passed no verify function is asked. redirect: see once.fail.
CREATE FUNCTION once._report(tenant text, scope text, key text, bucket integer, fence integer, next_state once.state,
    outcome once.outcome, redirect bytea DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored once.intent;
BEGIN
    UPDATE once.intent AS i
       SET state = next_state, updated_at = now, completed_at = CASE WHEN next_state <> 'in_doubt' THEN now END,
           lease_until = CASE WHEN next_state = 'in_doubt' AND outcome.response_status IS NULL THEN i.lease_until END,
           -- Column by column: ROW(outcome.*) would cost every report 10,000 instructions.
           response_status = outcome.response_status, response_body = outcome.response_body,
           response_headers = outcome.response_headers, result_type = outcome.result_type, result_id = outcome.result_id,
           error_code = outcome.error_code, error_message = outcome.error_message,
           redirects = once._redirected(i.redirects, i.fingerprint, next_state, redirect),
           -- A redirect is not an attempt. For at most twenty of them, so that the attempts do run out.
           attempts = CASE WHEN redirect IS NULL OR next_state <> 'failed_retryable' OR cardinality(i.redirects) >= 20
                                OR once._same(i.fingerprint, i.redirects, redirect)
                           THEN i.attempts ELSE i.attempts - 1 END
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
       AND once._outcome_of(stored) IS NOT DISTINCT FROM outcome
       AND once._redirected(stored.redirects, stored.fingerprint, next_state, redirect) IS NOT DISTINCT FROM stored.redirects THEN
        RETURN 'repeated';
    END IF;
    RETURN 'refused';
END $$;
