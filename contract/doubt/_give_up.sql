-- SPDX-License-Identifier: PostgreSQL
-- once._give_up(stored, to_state, code, reason, kind): ends an attempt without an answer: in doubt, or failed for good. Deletes an answer
-- that an earlier attempt left, since no retry may get it. The caller holds the row (once._hold).
CREATE FUNCTION once._give_up(stored once.intent, to_state once.state, code text, reason text, kind text) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    UPDATE once.intent AS i
       SET state = to_state, updated_at = now, completed_at = CASE WHEN to_state = 'failed_final' THEN now END, lease_until = NULL,
           (response_status, response_body, response_headers, result_type, result_id, error_code, error_message)
               = ROW(NULL, NULL, NULL, NULL, NULL, code, reason)
     WHERE i.tenant = stored.tenant AND i.scope = stored.scope AND i.key = stored.key AND i.bucket = stored.bucket;
    PERFORM once._record(stored.tenant, stored.scope, stored.key, stored.fence, stored.state, to_state, reason, kind, stored);
END $$;
