-- SPDX-License-Identifier: PostgreSQL
SELECT once.resolve($1::text, $2::text, $3::text, $4::text, $5::integer, response_body => $6::bytea,
    response_headers => $7::text::jsonb, result_type => $8::text, result_id => $9::text, error_code => $10::text,
    error_message => $11::text, tenant => $12::text)
