-- SPDX-License-Identifier: PostgreSQL
SELECT once.lock($1::text, $2::bigint * interval '1 millisecond')
