-- SPDX-License-Identifier: PostgreSQL
-- The page /scopes: the policies, and what the keeper's last sweep found in each scope.
WITH listed AS MATERIALIZED (
    SELECT s.scope, jsonb_build_object('scope', s.scope, 'own', s.own, 'lease', s.lease, 'retention', s.retention,
               'max_attempts', s.max_attempts, 'on_stale', s.on_stale, 'verify', s.verify, 'response_bytes_max', s.response_bytes_max,
               'event_bytes_max', s.event_bytes_max, 'stale', s.stale, 'in_doubt', s.in_doubt,
               'oldest_stale_ms', floor(1000 * extract(epoch FROM clock_timestamp() - s.oldest_stale))::bigint, 'as_of', s.as_of) AS one
      FROM once.scope_list() AS s
)
SELECT jsonb_build_object('now', clock_timestamp(), 'default', (SELECT l.one FROM listed AS l WHERE l.scope = ''),
    'scopes', (SELECT coalesce(jsonb_agg(l.one ORDER BY l.scope), '[]') FROM listed AS l WHERE l.scope <> ''))
