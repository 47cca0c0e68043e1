-- SPDX-License-Identifier: PostgreSQL
-- once._record(tenant, scope, key, fence, from_state, to_state, reason, kind, before): records a decision about an intent in
-- once.decision: who, when, why, from which state to which. Call it after the change; before is the row as it was. kind is 'resolve' (an
-- operator), 'verify', 'doubt' or 'abandon' (by verify, policy or used-up attempts), 'takeover' or 'retry' (a new attempt), 'retire' (the
-- intent's day was retired).
CREATE FUNCTION once._record(tenant text, scope text, key text, fence integer, from_state once.state, to_state once.state, reason text,
    kind text DEFAULT 'resolve', before once.intent DEFAULT NULL) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    day integer := once._bucket(key);
    stored once.intent;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C" AND i.bucket = day;
    IF NOT FOUND THEN
        stored := once._archived(tenant, scope, key, day);
    END IF;
    INSERT INTO once.decision (decided_by, reason, tenant, scope, key, fence, from_state, to_state, kind, before, after)
    VALUES (session_user, reason, tenant, scope, key, fence, from_state, to_state, kind, once._summary(before),
            once._summary(stored));
END $$;
