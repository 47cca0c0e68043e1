-- SPDX-License-Identifier: PostgreSQL
-- once.scope_stats: a row per scope that has a policy or intents: its policy, and the number of its intents in each state, including
-- those of retired days. stale: processing, and their lease has passed; oldest_stale: when the first one's did. '' is the default policy.
-- Reads the whole table and the archive.
CREATE VIEW once.scope_stats (scope, lease, retention, max_attempts, on_stale, processing, stale, succeeded, failed_retryable,
    failed_final, in_doubt, oldest_stale) AS
SELECT n.scope::text, p.lease, p.retention, p.max_attempts, p.on_stale::text, n.processing, n.stale, n.succeeded, n.failed_retryable,
       n.failed_final, n.in_doubt, n.oldest_stale
  FROM (SELECT i.scope, count(*) FILTER (WHERE i.state = 'processing') AS processing,
               count(*) FILTER (WHERE i.state = 'processing' AND (i.lease_until <= clock_timestamp()
                   OR i.lease_until > clock_timestamp() + interval '8 days')) AS stale,
               count(*) FILTER (WHERE i.state = 'succeeded') AS succeeded,
               count(*) FILTER (WHERE i.state = 'failed_retryable') AS failed_retryable,
               count(*) FILTER (WHERE i.state = 'failed_final') AS failed_final,
               count(*) FILTER (WHERE i.state = 'in_doubt') AS in_doubt,
               min(i.lease_until) FILTER (WHERE i.state = 'processing' AND i.lease_until <= clock_timestamp()) AS oldest_stale
          FROM (SELECT o.scope, o.state, o.lease_until FROM once.intent AS o
                 UNION ALL SELECT a.scope, a.state, a.lease_until FROM once.archive AS a
                 UNION ALL SELECT s.scope, NULL::once.state, NULL::timestamptz FROM once.scope AS s) AS i
         GROUP BY i.scope) AS n
 CROSS JOIN LATERAL (SELECT s.* FROM once.scope AS s WHERE s.scope IN (n.scope, '') ORDER BY s.scope DESC LIMIT 1) AS p;
