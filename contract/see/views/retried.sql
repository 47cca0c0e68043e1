-- SPDX-License-Identifier: PostgreSQL
-- once.retried: intents that needed more than one attempt, or that an operator has decided. Reads the whole table.
CREATE VIEW once.retried (tenant, scope, key, state, fence, attempts, owner, created_at, updated_at, lease_until, error_code, error_message,
    traceparent) AS
SELECT i.tenant::text, i.scope::text, i.key::text, i.state::text, i.fence, i.attempts, i.owner::text, i.created_at, i.updated_at,
       i.lease_until, i.error_code::text, i.error_message::text, i.traceparent::text
  FROM once.intent AS i
 WHERE i.attempts > 1
    OR EXISTS (SELECT FROM once.decision AS d
                WHERE d.tenant = i.tenant AND d.scope = i.scope AND d.key = i.key AND d.kind = 'resolve' AND d.decided_at >= i.created_at);
