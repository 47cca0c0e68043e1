-- SPDX-License-Identifier: PostgreSQL
-- once._decide(source, stored, to_state, reason, kind, outcome, error_code, error_message): stores a decision on an intent, if it
-- still is what was read, and raises the fence, so that a zombie of the old attempt is shut out; recorded in once.decision with who
-- and why. source is the table of the row, once.intent or once.archive. False where its attempt is reporting right now, or the row
-- was changed or moved meanwhile. The caller holds the intent's advisory lock.
CREATE FUNCTION once._decide(source regclass, stored once.intent, to_state once.state, reason text, kind text,
    outcome once.verification, error_code text, error_message text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := clock_timestamp();
    changed bigint;
BEGIN
    IF source = 'once.intent'::regclass AND NOT once._hold(stored.tenant, stored.scope, stored.key, stored.bucket,
        stored.fence, stored.state, stored.lease_until) THEN
        RETURN false;
    END IF;
    -- format() and not two statements: an archived row has the same columns in another table.
    EXECUTE format('UPDATE %s SET state = $1, fence = fence + 1, updated_at = $2, completed_at = $2, lease_until = NULL,
                    response_status = $3, response_headers = $4, response_body = $5, result_type = $6, result_id = $7,
                    error_code = $8, error_message = $9
                    WHERE tenant = $10 AND scope = $11 AND key = $12 AND bucket = $13 AND fence = $14 AND state = $15', source)
      USING to_state, now, outcome.response_status, outcome.response_headers, outcome.response_body, outcome.result_type,
            outcome.result_id, error_code, error_message, stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence,
            stored.state;
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed > 0 THEN
        PERFORM once._record(stored.tenant, stored.scope, stored.key, stored.fence, stored.state, to_state, reason, kind, stored);
    END IF;
    RETURN changed > 0;
END $$;
