-- SPDX-License-Identifier: PostgreSQL
-- The page /doubts. $1 scope, $2 tenant, $3 error, $4 after (NULL: any, from the beginning), $5 how many.
WITH found AS MATERIALIZED (
    SELECT d.* FROM once.doubts_part($2, $1, $3, least(greatest(coalesce($5::integer, 50), 1), 500), $4) WITH ORDINALITY AS d (tenant,
               scope, key, fence, attempts, owner, created_at, lease_until, since, error_code, error_message, traceparent, archived, next,
               share, row)
), ending AS (
    SELECT f.next, f.share FROM found AS f ORDER BY f.row DESC LIMIT 1
)
SELECT jsonb_build_object(
    'now', clock_timestamp(), 'scope', $1::text, 'tenant', $2::text, 'error', $3::text, 'after', $4::text,
    'take', least(greatest(coalesce($5::integer, 50), 1), 500),
    'doubts', (SELECT coalesce(jsonb_agg(to_jsonb(f) - '{next,share,row}'::text[] || jsonb_build_object('reason', f.error_message,
                   'age_ms', floor(1000 * extract(epoch FROM clock_timestamp() - f.since))::bigint) ORDER BY f.row), '[]')
                 FROM found AS f WHERE f.key IS NOT NULL),
    'next', (SELECT e.next FROM ending AS e), 'done', (SELECT e.next IS NULL FROM ending AS e),
    'searched', (SELECT jsonb_build_object('share', e.share, 'percent', floor(100 * e.share)) FROM ending AS e),
    'swept', (SELECT coalesce(jsonb_agg(jsonb_build_object('scope', s.scope, 'stale', s.stale, 'in_doubt', s.in_doubt,
                  'oldest_stale', s.oldest_stale,
                  'oldest_stale_ms', floor(1000 * extract(epoch FROM clock_timestamp() - s.oldest_stale))::bigint, 'as_of', s.as_of,
                  'as_of_ms', floor(1000 * extract(epoch FROM clock_timestamp() - s.as_of))::bigint)
                  ORDER BY s.in_doubt DESC, s.scope), '[]') FROM once.scope_list() AS s WHERE s.stale + s.in_doubt > 0))
