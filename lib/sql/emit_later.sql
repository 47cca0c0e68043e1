-- SPDX-License-Identifier: PostgreSQL
-- The arguments of emit.sql, and not_before: $11.
SELECT once.emit_later($11::timestamptz, $1::text, $2::text::jsonb, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text::jsonb,
    $9::text, traceparent => $10::text)::text
