-- SPDX-License-Identifier: PostgreSQL
-- once.in_doubt: intents with an unknown outcome, including those of retired days; each waits for once.resolve. since: since when. Reads
-- the whole table and the archive.
CREATE VIEW once.in_doubt (tenant, scope, key, fence, attempts, owner, created_at, lease_until, since, error_code, error_message,
    traceparent, archived) AS
SELECT i.tenant::text, i.scope::text, i.key::text, i.fence, i.attempts, i.owner::text, i.created_at, i.lease_until,
       i.updated_at, i.error_code::text, i.error_message::text, i.traceparent::text, false
  FROM once.intent AS i WHERE i.state = 'in_doubt'
 UNION ALL
SELECT a.tenant::text, a.scope::text, a.key::text, a.fence, a.attempts, a.owner::text, a.created_at, a.lease_until,
       a.updated_at, a.error_code::text, a.error_message::text, a.traceparent::text, true
  FROM once.archive AS a WHERE a.state = 'in_doubt';
