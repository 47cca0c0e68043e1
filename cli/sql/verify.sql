-- SPDX-License-Identifier: PostgreSQL
-- What the scope's verify function says of an intent. $1 scope, $2 key, $3 tenant.
SELECT v.answer, v.response_status, octet_length(v.response_body), v.result_type, v.result_id FROM once.verify($1, $2, $3) AS v
