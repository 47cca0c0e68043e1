-- SPDX-License-Identifier: PostgreSQL
-- In the caller's transaction. One value, which answer.c takes apart: a column for each of its parts costs the server
-- 22,000 instructions more.
SELECT once.start($1::text, $2::text, $3::bytea, $4::text, traceparent => $5::text)
