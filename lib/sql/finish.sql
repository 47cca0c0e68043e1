-- SPDX-License-Identifier: PostgreSQL
-- The body is not sent back: the caller has it.
SELECT FROM once.finish($1::text, $2::text, $3::bytea, $4::integer, $5::bytea, $6::text::jsonb, $7::text, $8::text,
    $9::text, $10::text, $11::text, $12::text, traceparent => $13::text)
