-- SPDX-License-Identifier: PostgreSQL
-- $1 id, $2 consumer (NULL: an event), $3 tenant.
SELECT once.parked_show($1, $2, $3)
