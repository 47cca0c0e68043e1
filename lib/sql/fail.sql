-- SPDX-License-Identifier: PostgreSQL
SELECT once.fail($1::text, $2::text, $3::integer, $4::boolean, $5::text, $6::text, $7::integer, $8::bytea,
    $9::text::jsonb, $10::text)
