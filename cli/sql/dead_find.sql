-- SPDX-License-Identifier: PostgreSQL
-- With whom a message of this id is parked. $1 id, $2 consumer, $3 tenant (each NULL: any).
SELECT coalesce(json_agg(json_build_object('consumer', m.consumer, 'tenant', m.tenant, 'state', m.state)
           ORDER BY m.consumer, m.tenant), '[]'::json)
  FROM once.dead_list($2, NULL, 2147483647) AS m
 WHERE m.message_id = $1 AND ($3::text IS NULL OR m.tenant = $3)
