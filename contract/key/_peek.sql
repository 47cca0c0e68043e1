-- SPDX-License-Identifier: PostgreSQL
-- once._peek(tenant, scope, key, bucket): the stored state of an intent, for arguments that are already checked. The common core of peek
-- and peek_many.
CREATE FUNCTION once._peek(tenant text, scope text, key text, bucket integer) RETURNS once.peeked LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
DECLARE
    stored once.intent;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND bucket <> 0 THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    RETURN ROW(CASE WHEN stored.state IS NOT NULL
                    THEN once._verdict(true, stored.state, stored.lease_until, clock_timestamp(), 0, NULL, 'takeover')
                    WHEN once._day_state(bucket) = 'closed' THEN 'expired' ELSE 'absent' END,
               stored.fence, stored.state, (once._outcome_of(stored)).*, stored.owner, stored.lease_until, stored.attempts,
               stored.created_at, stored.completed_at, stored.traceparent)::once.peeked;
END $$;
