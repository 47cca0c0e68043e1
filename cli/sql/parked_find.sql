-- SPDX-License-Identifier: PostgreSQL
-- Where an event or a message of this id is parked, or delayed. $1 id, $2 kind, $3 relay, $4 consumer, $5 tenant (each NULL: any).
SELECT coalesce(json_agg(json_build_object('kind', p.kind, 'holder', p.holder, 'tenant', p.tenant, 'state', p.state)
           ORDER BY p.kind, p.holder NULLS FIRST, p.tenant), '[]'::json)
  FROM (SELECT DISTINCT l.kind, l.holder, l.tenant, l.state
          FROM (SELECT f.* FROM once.parked_list($2, $3, $4, $5, id => $1, take => 2147483647) AS f
                 UNION ALL
                SELECT d.* FROM once.parked_list(state => 'delayed', tenant => $5, id => $1) AS d
                 WHERE $2::text IS DISTINCT FROM 'message' AND $4::text IS NULL) AS l) AS p
