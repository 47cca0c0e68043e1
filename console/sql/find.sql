-- SPDX-License-Identifier: PostgreSQL
-- The page /find. $1 q, $2 scope, $3 tenant, $4 state, $5 since, $6 until, $7 after (NULL: any, from the beginning), $8 how many.
WITH found AS MATERIALIZED (
    SELECT f.* FROM once.find_part($1, $3, $2, $4, $5::timestamptz, $6::timestamptz,
               least(greatest(coalesce($8::integer, 50), 1), 500), $7) WITH ORDINALITY AS f (tenant, scope, key, state, verdict, fence,
               attempts, owner, created_at, updated_at, completed_at, lease_until, response_status, result_type, result_id, error_code,
               error_message, traceparent, archived, found_by, next, share, reached, understood, row)
), ending AS (
    SELECT f.next, f.share, f.reached, f.understood FROM found AS f ORDER BY f.row DESC LIMIT 1
)
SELECT jsonb_build_object(
    'now', clock_timestamp(), 'q', $1::text, 'scope', $2::text, 'tenant', $3::text, 'state', $4::text, 'since', $5::timestamptz,
    'until', $6::timestamptz, 'after', $7::text, 'take', least(greatest(coalesce($8::integer, 50), 1), 500),
    'what', (SELECT coalesce(to_jsonb(e.understood), '[]') FROM ending AS e),
    'states', (SELECT jsonb_agg(jsonb_build_object('state', s.state, 'selected', coalesce(s.state = $4::text, false)) ORDER BY s.nth)
                 FROM unnest(enum_range(NULL::once.state)::text[]) WITH ORDINALITY AS s (state, nth)),
    'scopes', (SELECT coalesce(jsonb_agg(jsonb_build_object('scope', s.scope, 'selected', coalesce(s.scope = $2::text, false))
                   ORDER BY s.scope), '[]') FROM once.scope_list() AS s WHERE s.scope <> ''),
    'intents', (SELECT coalesce(jsonb_agg(to_jsonb(f) - '{next,share,reached,understood,row}'::text[] || jsonb_build_object(
                    'age_ms', floor(1000 * extract(epoch FROM clock_timestamp() - f.created_at))::bigint) ORDER BY f.row), '[]')
                  FROM found AS f WHERE f.key IS NOT NULL),
    'next', (SELECT e.next FROM ending AS e), 'done', (SELECT e.next IS NULL FROM ending AS e),
    'searched', (SELECT jsonb_build_object('share', e.share, 'percent', floor(100 * e.share), 'to', e.reached) FROM ending AS e))
