-- SPDX-License-Identifier: PostgreSQL
SELECT once.release($1::text, $2::text, $3::integer, $4::text)
