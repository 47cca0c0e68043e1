-- SPDX-License-Identifier: PostgreSQL
-- First in a pipeline, where the outcome is known before the effect: raises for a replay too.
SELECT once.finish_new($1::text, $2::text, $3::bytea, $4::integer, $5::bytea, $6::text::jsonb, $7::text, $8::text,
    $9::text, $10::text, $11::text, $12::text, traceparent => $13::text)
