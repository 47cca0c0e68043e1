-- SPDX-License-Identifier: PostgreSQL
-- What runs, is stale and in doubt in each scope, and the attempts that run longest: looked for through all intents, so pgonce
-- top asks it less often the longer it takes.
SELECT jsonb_build_object(
    'scopes', (SELECT coalesce(jsonb_agg(jsonb_build_object('scope', t.scope, 'in_flight', t.in_flight, 'stale', t.stale,
                   'in_doubt', t.in_doubt, 'oldest_seconds', t.oldest_seconds)
                   ORDER BY t.in_flight + t.stale + t.in_doubt DESC, t.scope), '[]') FROM once.top() AS t),
    'running', (SELECT coalesce(jsonb_agg(jsonb_build_object('tenant', l.tenant, 'scope', l.scope, 'key', l.key,
                    'owner', l.owner, 'attempts', l.attempts, 'created_at', l.created_at,
                    'age_seconds', extract(epoch FROM clock_timestamp() - l.created_at)::double precision,
                    'lease_seconds', extract(epoch FROM l.lease_until - clock_timestamp())::double precision)
                    ORDER BY l.created_at, l.scope, l.key), '[]')
                  FROM (SELECT f.* FROM once.find(state => 'processing', take => 100000) AS f
                         ORDER BY f.created_at, f.scope, f.key LIMIT 200) AS l))
