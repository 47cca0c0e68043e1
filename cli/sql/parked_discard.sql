-- SPDX-License-Identifier: PostgreSQL
-- $1 id, $2 reason, $3 relay, $4 consumer, $5 tenant.
SELECT to_json(once.parked_discard($1, $2, $3, $4, $5))
