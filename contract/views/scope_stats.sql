-- SPDX-License-Identifier: PostgreSQL
-- once.scope_stats: a row per scope that has a policy, '' for all others together: its policy; how many attempts were told
-- what (once.counts); and what the keeper's last sweep found: stale and in_doubt intents, when the oldest lease passed.
CREATE VIEW once.scope_stats (scope, lease, retention, max_attempts, on_stale, new, replay, mismatch, active, taken_over, retryable,
    final, told_in_doubt, expired, process, duplicate, stale, in_doubt, oldest_stale, as_of) AS
SELECT p.scope::text, p.lease, p.retention, p.max_attempts, p.on_stale::text,
       c.new, c.replay, c.mismatch, c.active, c.stale, c.retryable, c.final, c.in_doubt, c.expired,
       c.process, c.duplicate, s.stale, s.in_doubt, s.oldest_stale, s.as_of
  FROM once.scope AS p
  LEFT JOIN (SELECT n.scope, (sum(n.count) FILTER (WHERE n.verdict = 'new'))::bigint AS new,
                    (sum(n.count) FILTER (WHERE n.verdict = 'replay'))::bigint AS replay,
                    (sum(n.count) FILTER (WHERE n.verdict IN ('mismatch', 'message_mismatch')))::bigint AS mismatch,
                    (sum(n.count) FILTER (WHERE n.verdict = 'active'))::bigint AS active,
                    (sum(n.count) FILTER (WHERE n.verdict = 'stale'))::bigint AS stale,
                    (sum(n.count) FILTER (WHERE n.verdict = 'retryable'))::bigint AS retryable,
                    (sum(n.count) FILTER (WHERE n.verdict = 'final'))::bigint AS final,
                    (sum(n.count) FILTER (WHERE n.verdict = 'in_doubt'))::bigint AS in_doubt,
                    (sum(n.count) FILTER (WHERE n.verdict = 'expired'))::bigint AS expired,
                    (sum(n.count) FILTER (WHERE n.verdict = 'process'))::bigint AS process,
                    (sum(n.count) FILTER (WHERE n.verdict = 'duplicate'))::bigint AS duplicate
               FROM once.counts() AS n GROUP BY n.scope) AS c ON c.scope = p.scope
  LEFT JOIN once.swept AS s ON s.scope = p.scope;
