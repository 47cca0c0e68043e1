-- SPDX-License-Identifier: PostgreSQL
-- What does not finish. $1 scope, $2 tenant (each NULL: all), $3 how long an attempt may run before it is listed, $4 how
-- many of each, $5 only intents of these slots (NULL: all).
SELECT json_build_object(
    'stale', (SELECT coalesce(json_agg(to_jsonb(s) || jsonb_build_object(
                  'age_ms', floor(extract(epoch FROM clock_timestamp() - s.created_at) * 1000)::bigint,
                  'stale_ms', floor(extract(epoch FROM s.stale_for) * 1000)::bigint) - 'stale_for'
                  ORDER BY s.lease_until), '[]'::json)
                FROM (SELECT v.tenant, v.scope, v.key, v.fence, v.attempts, v.owner, v.created_at, v.lease_until, v.on_stale, v.stale_for
                        FROM once.stuck AS v
                       WHERE ($1::text IS NULL OR v.scope = $1) AND ($2::text IS NULL OR v.tenant = $2)
                         AND ($5::integer[] IS NULL OR once.slot_of(v.tenant) = ANY ($5::integer[]))
                       ORDER BY v.lease_until LIMIT $4::integer) AS s),
    'active', (SELECT coalesce(json_agg(to_jsonb(a) || jsonb_build_object(
                  'age_ms', floor(extract(epoch FROM clock_timestamp() - a.created_at) * 1000)::bigint,
                  'lease_ms', floor(extract(epoch FROM a.lease_until - clock_timestamp()) * 1000)::bigint)
                  ORDER BY a.created_at), '[]'::json)
                 FROM (SELECT f.tenant, f.scope, f.key, f.fence, f.attempts, f.owner, f.created_at, f.lease_until
                         FROM once.find(tenant => $2, scope => $1, state => 'processing',
                                        until => clock_timestamp() - $3::interval, take => 100000) AS f
                        WHERE f.lease_until > clock_timestamp() AND f.lease_until <= clock_timestamp() + interval '8 days'
                          AND ($5::integer[] IS NULL OR once.slot_of(f.tenant) = ANY ($5::integer[]))
                        ORDER BY f.created_at LIMIT $4::integer) AS a),
    'retried', (SELECT coalesce(json_agg(to_jsonb(r) || jsonb_build_object(
                  'age_ms', floor(extract(epoch FROM clock_timestamp() - r.created_at) * 1000)::bigint)
                  ORDER BY r.attempts DESC, r.created_at), '[]'::json)
                  FROM (SELECT v.tenant, v.scope, v.key, v.state, v.fence, v.attempts, v.owner, v.created_at
                          FROM once.retried AS v
                         WHERE ($1 IS NULL OR v.scope = $1) AND ($2 IS NULL OR v.tenant = $2) AND v.attempts >= 3
                           AND v.state NOT IN ('succeeded', 'failed_final')
                           AND ($5::integer[] IS NULL OR once.slot_of(v.tenant) = ANY ($5::integer[]))
                         ORDER BY v.attempts DESC, v.created_at LIMIT $4::integer) AS r),
    'parked', (SELECT coalesce(json_agg(json_build_object('kind', p.kind, 'holder', p.holder, 'topic', p.topic, 'state', p.state,
                  'items', p.items, 'age_ms', floor(extract(epoch FROM clock_timestamp() - p.oldest) * 1000)::bigint)
                  ORDER BY p.kind, p.holder, p.topic, p.state), '[]'::json)
                 FROM once.parked_summary() AS p WHERE p.state IN ('waiting', 'retrying', 'dead', 'foreign')))
