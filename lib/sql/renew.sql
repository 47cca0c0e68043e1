-- SPDX-License-Identifier: PostgreSQL
SELECT once.renew($1::text, $2::text, $3::integer, $4::bigint * interval '1 millisecond', $5::text)
