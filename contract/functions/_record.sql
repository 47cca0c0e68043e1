-- SPDX-License-Identifier: PostgreSQL
-- once._record(...): notes a decision about an intent: who, when, why, from what to what.
CREATE FUNCTION once._record(tenant text, scope text, key text, fence integer, from_state once.state,
    to_state once.state, reason text)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO once.decision (decided_by, reason, tenant, scope, key, fence, from_state, to_state)
    VALUES (session_user, reason, tenant, scope, key, fence, from_state, to_state)
$$;
