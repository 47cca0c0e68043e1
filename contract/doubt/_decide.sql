-- SPDX-License-Identifier: PostgreSQL
-- once._decide(source, stored, to_state, reason, kind, outcome): stores a decision on an intent if its row is unchanged since it was
-- read. Raises the fence, which shuts out a zombie of the old attempt. Records in once.decision who decided and why. source is the table
-- of the row, once.intent or once.archive. Returns false if the attempt is reporting at this moment, or if the row was changed or moved
-- meanwhile. The caller holds the intent's advisory lock.
CREATE FUNCTION once._decide(source regclass, stored once.intent, to_state once.state, reason text, kind text,
    outcome once.outcome) RETURNS boolean LANGUAGE plpgsql AS $$
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
                    (response_status, response_body, response_headers, result_type, result_id, error_code, error_message)
                        = (SELECT ($3).*)
                    WHERE tenant = $4 AND scope = $5 AND key = $6 AND bucket = $7 AND fence = $8 AND state = $9', source)
      USING to_state, now, outcome, stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, stored.state;
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed > 0 THEN
        PERFORM once._record(stored.tenant, stored.scope, stored.key, stored.fence, stored.state, to_state, reason, kind, stored);
    END IF;
    RETURN changed > 0;
END $$;
