-- SPDX-License-Identifier: PostgreSQL
-- POST /scope. $1 scope (NULL: the default policy), $2 lease, $3 retention, $4 max_attempts (0: no limit), $5 on_stale, $6 verify,
-- $7 response_bytes_max, $8 event_bytes_max (each NULL: as it is), $9 not NULL: a dry run.
WITH old AS MATERIALIZED (
    SELECT s.lease, s.retention, s.max_attempts, s.on_stale, s.verify, s.response_bytes_max, s.event_bytes_max, s.stale, s.in_doubt,
           s.own AND s.scope = coalesce($1::text, '') AS own
      FROM once.scope_list() AS s WHERE s.scope IN (coalesce($1::text, ''), '') ORDER BY s.scope DESC LIMIT 1
), made AS MATERIALIZED (
    SELECT p.lease, p.retention, p.max_attempts, p.on_stale, p.verify, p.response_bytes_max, p.event_bytes_max
      FROM old AS o CROSS JOIN LATERAL once.set_scope(coalesce($1, ''), $2::interval, $3::interval, $4::integer, $5, $6, $7::integer,
               $8::integer, $9::text IS NOT NULL AND o.own IS NOT NULL) AS p
), change AS MATERIALIZED (
    SELECT n.key AS name, w.value #>> '{}' AS old, n.value #>> '{}' AS new
      FROM old AS o, made AS m, jsonb_each(to_jsonb(m)) AS n JOIN jsonb_each(to_jsonb(o)) AS w ON w.key = n.key
     WHERE n.value <> w.value
)
SELECT jsonb_build_object('now', clock_timestamp(), 'scope', coalesce($1::text, ''), 'dry_run', $9::text IS NOT NULL,
    'saved', $9::text IS NULL, 'old', to_jsonb(o), 'new', to_jsonb(m),
    'changes', (SELECT coalesce(jsonb_agg(jsonb_build_object('name', c.name, 'old', c.old, 'new', c.new) ORDER BY c.name), '[]')
                  FROM change AS c),
    'nothing_changes', NOT EXISTS (SELECT FROM change), 'becomes_own', NOT o.own,
    'takeover', m.on_stale = 'takeover' AND o.on_stale <> 'takeover', 'lease_shorter', m.lease < o.lease,
    'retention_shorter', m.retention < o.retention, 'retention_longer', m.retention > o.retention,
    'storage_times', round((extract(epoch FROM m.retention) / extract(epoch FROM o.retention))::numeric, 2),
    'stale', coalesce(o.stale, 0), 'in_doubt', coalesce(o.in_doubt, 0))
  FROM old AS o, made AS m
