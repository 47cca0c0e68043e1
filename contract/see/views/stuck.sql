-- SPDX-License-Identifier: PostgreSQL
-- once.stuck: attempts that fell silent: their lease has passed and no other attempt has taken over. on_stale: what the scope's policy
-- does when the next attempt comes; with 'in_doubt', or when the attempts are used up, the intent waits for once.resolve. So does one
-- whose lease ends in more than 8 days, longer than any lease is: it was taken while the clock was ahead, and stale_for is 0. Reads the
-- whole table.
--
CREATE VIEW once.stuck (tenant, scope, key, fence, attempts, owner, created_at, updated_at, lease_until, stale_for, on_stale, max_attempts,
    traceparent) AS
SELECT i.tenant::text, i.scope::text, i.key::text, i.fence, i.attempts, i.owner::text, i.created_at, i.updated_at, i.lease_until,
       greatest(clock_timestamp() - i.lease_until, '0'), p.on_stale::text, p.max_attempts, i.traceparent::text
  FROM once.intent AS i
 CROSS JOIN LATERAL (SELECT s.on_stale, s.max_attempts FROM once.scope AS s WHERE s.scope IN (i.scope, '')
                      ORDER BY s.scope DESC LIMIT 1) AS p
 WHERE i.state = 'processing' AND (i.lease_until <= clock_timestamp() OR i.lease_until > clock_timestamp() + interval '8 days');
