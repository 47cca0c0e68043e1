-- SPDX-License-Identifier: PostgreSQL
SELECT once.emit($1::text, $2::text::jsonb, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text::jsonb,
    $9::text, traceparent => $10::text)::text
