-- SPDX-License-Identifier: PostgreSQL
-- First in a pipeline, if the outcome is known before the effect: raises an error for a replay too.
SELECT once.finish_new($1::text, $2::text, $3::bytea, $4::integer, response_body => $5::bytea,
    response_headers => $6::text::jsonb, result_type => $7::text, result_id => $8::text, state => $9::text,
    error_code => $10::text, error_message => $11::text, tenant => $12::text, traceparent => $13::text)
