-- SPDX-License-Identifier: PostgreSQL
-- pgonce show --nodes without --tenant: the tenants that have an intent of this name. $1 scope, $2 key, $3 only of these slots (NULL: all).
SELECT t.tenant::text
  FROM (SELECT i.tenant FROM once.intent AS i WHERE i.scope = $1::text COLLATE "C" AND i.key = $2::text COLLATE "C"
        UNION SELECT a.tenant FROM once.archive AS a WHERE a.scope = $1::text COLLATE "C" AND a.key = $2::text COLLATE "C") AS t
 WHERE $3::integer[] IS NULL OR once.slot_of(t.tenant) = ANY ($3::integer[])
 ORDER BY t.tenant LIMIT 20
