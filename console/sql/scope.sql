-- SPDX-License-Identifier: PostgreSQL
-- The page /scope. $1 scope; NULL: the default policy. storage is that of all scopes, rows as the server last counted them.
WITH listed AS MATERIALIZED (
    SELECT s.scope, s.on_stale, s.verify, jsonb_build_object('scope', s.scope, 'own', s.own, 'lease', s.lease, 'retention', s.retention,
               'max_attempts', s.max_attempts, 'on_stale', s.on_stale, 'verify', s.verify, 'response_bytes_max', s.response_bytes_max,
               'event_bytes_max', s.event_bytes_max, 'stale', s.stale, 'in_doubt', s.in_doubt,
               'oldest_stale_ms', floor(1000 * extract(epoch FROM clock_timestamp() - s.oldest_stale))::bigint, 'as_of', s.as_of,
               'lease_ms', floor(1000 * extract(epoch FROM s.lease))::bigint,
               'retention_ms', floor(1000 * extract(epoch FROM s.retention))::bigint) AS one
      FROM once.scope_list() AS s
), shown AS MATERIALIZED (
    SELECT l.* FROM listed AS l WHERE l.scope IN (coalesce($1::text, ''), '') ORDER BY l.scope DESC LIMIT 1
), stored AS MATERIALIZED (
    SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint AS rows,
           coalesce(sum(pg_total_relation_size(c.oid)), 0) AS bytes
      FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid JOIN pg_class AS p ON p.oid = h.inhparent
     WHERE p.relnamespace = (SELECT n.oid FROM pg_namespace AS n WHERE n.nspname = 'once') AND p.relname IN ('intent', 'archive')
       AND p.relkind = 'p'
)
SELECT s.one || jsonb_build_object('now', clock_timestamp(), 'scope', coalesce($1::text, ''),
    'own', (s.one->>'own')::boolean AND s.scope = coalesce($1::text, ''),
    'default', (SELECT l.one FROM listed AS l WHERE l.scope = ''),
    'on_stales', (SELECT jsonb_agg(jsonb_build_object('on_stale', o.name, 'selected', o.name = s.on_stale) ORDER BY o.nth)
                    FROM unnest('{in_doubt,takeover,verify}'::text[]) WITH ORDINALITY AS o (name, nth)),
    'verify_functions', (SELECT coalesce(jsonb_agg(jsonb_build_object('name', f.name, 'selected', f.name IS NOT DISTINCT FROM s.verify)
                             ORDER BY f.name), '[]')
                           FROM (SELECT format('%I.%I', n.nspname, p.proname) AS name
                                   FROM pg_type AS t JOIN pg_namespace AS o ON o.oid = t.typnamespace AND o.nspname = 'once'
                                   JOIN pg_proc AS p ON p.prorettype = t.oid JOIN pg_namespace AS n ON n.oid = p.pronamespace
                                  WHERE t.typname = 'verification' AND n.nspname <> 'once') AS f),
    'storage', (SELECT jsonb_build_object('rows', t.rows, 'bytes', t.bytes,
                           'row_bytes', CASE WHEN t.rows > 0 THEN round(t.bytes / t.rows) END) FROM stored AS t))
  FROM shown AS s
