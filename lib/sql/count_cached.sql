-- SPDX-License-Identifier: PostgreSQL
SELECT server, retention_ms FROM once.count_cached($1::bigint, $2::bigint, $3::bigint)
