-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: deletes the memory of slots $1 that another node has with epochs $2, from $3 and $4 on, in a step.
SELECT f.leaf, f.block, f.deleted FROM once._move_forget($1::integer[], $2::bigint[], $3::text, $4::bigint) AS f
