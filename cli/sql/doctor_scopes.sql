-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: what the counters say of keys. once.counts() is for once_reader and once_keeper.
WITH scopes AS (
    SELECT CASE c.scope WHEN '' THEN 'scopes without a policy of their own' ELSE quote_literal(c.scope) END AS scope,
           sum(c.count) FILTER (WHERE c.verdict = 'new') AS new,
           coalesce(sum(c.count) FILTER (WHERE c.verdict IN
               ('replay', 'active', 'stale', 'retryable', 'final', 'in_doubt')), 0) AS repeated,
           coalesce(sum(c.count) FILTER (WHERE c.verdict = 'mismatch'), 0) AS mismatched, sum(c.count) AS attempts
      FROM once.counts() AS c WHERE c.verdict NOT IN ('process', 'duplicate', 'message_mismatch')
     GROUP BY c.scope
)
SELECT 'keys of each attempt', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(format('%s: %s intents, not one repeated', scope, new), '; ' ORDER BY new DESC), 200),
           'keys are used again, as retries should'),
       'does the client make a new key for each attempt? Then nothing is protected: a key belongs to the intent, and every retry brings it'
  FROM scopes WHERE new >= 10000 AND repeated + mismatched = 0
UNION ALL
SELECT 'keys too coarse', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(format('%s: %s of %s attempts came with another request', scope, mismatched, attempts), '; '
           ORDER BY mismatched DESC), 200), 'few mismatches'),
       'one key for different requests: put what makes them different into the key (the order''s id, not the customer''s), or do not '
           || 'fingerprint what may change (a timestamp)'
  FROM scopes WHERE mismatched >= 100 AND mismatched > 0.01 * attempts
