-- SPDX-License-Identifier: PostgreSQL
SELECT to_json(once.dead_retry($1, $2, $3, $4))
