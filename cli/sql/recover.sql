-- SPDX-License-Identifier: PostgreSQL
-- One piece of recovery. $1 how many, $2 scope, $3 tenant (each NULL: all), $4 after which (NULL: from the beginning), $5 what is in doubt?
SELECT r.tenant, r.scope, r.key, r.fence, r.found, r.decided, r.reason, r.next FROM once.recover($1::integer, $2, $3, $4, $5::boolean) AS r
