-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: what the counters show about keys. once.counts() is for once_reader and once_keeper.
WITH counted AS (
    SELECT coalesce(sum(c.count) FILTER (WHERE c.verdict = 'new'), 0) AS new,
           coalesce(sum(c.count) FILTER (WHERE c.verdict IN
               ('replay', 'active', 'stale', 'retryable', 'final', 'in_doubt')), 0) AS repeated,
           coalesce(sum(c.count) FILTER (WHERE c.verdict = 'mismatch'), 0) AS mismatched, sum(c.count) AS attempts
      FROM once.counts() AS c WHERE c.verdict NOT IN ('process', 'duplicate', 'message_mismatch')
)
SELECT 'keys of each attempt', CASE WHEN new >= 10000 AND repeated + mismatched = 0 THEN 'warning' ELSE 'ok' END,
       format('%s new intents, %s repeated attempts', new, repeated + mismatched),
       'does the client make a new key for each attempt? Then nothing is protected: a key belongs to the intent, and every retry sends it'
  FROM counted
UNION ALL
SELECT 'keys too coarse', CASE WHEN mismatched >= 100 AND mismatched > 0.01 * attempts THEN 'warning' ELSE 'ok' END,
       format('%s of %s attempts came with another request', mismatched, coalesce(attempts, 0)),
       'one key for different requests: put the difference into the key (the order''s id, not the customer''s), or do not '
           || 'fingerprint values that may change (a timestamp)'
  FROM counted
