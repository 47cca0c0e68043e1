-- SPDX-License-Identifier: PostgreSQL
-- The arguments of emit.sql, the payload as bytes, and its content type: $11.
SELECT once.emit_bytes($1::text, $2::bytea, $11::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text::jsonb,
    $9::text, traceparent => $10::text)::text
