-- SPDX-License-Identifier: PostgreSQL
SELECT once.resolve($1::text, $2::text, $3::text, $4::text, $5::integer, $6::bytea, $7::text::jsonb, $8::text, $9::text,
    $10::text, $11::text, $12::text)
