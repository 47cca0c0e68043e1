-- SPDX-License-Identifier: PostgreSQL
-- The body is not sent back: the caller has it. FROM once.finish(...) would cost the server 12,000 instructions more.
SELECT once.finish($1::text, $2::text, $3::bytea, $4::integer, response_body => $5::bytea,
    response_headers => $6::text::jsonb, result_type => $7::text, result_id => $8::text, state => $9::text,
    error_code => $10::text, error_message => $11::text, tenant => $12::text, traceparent => $13::text) IS NULL
