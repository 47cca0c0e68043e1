-- SPDX-License-Identifier: PostgreSQL
SELECT ord, verdict, error_code, error_message
  FROM once.complete_many($1::text[], $2::text[], $3::integer[], $4::integer[],
      response_body => $5::bytea[], response_headers => $6::text[]::jsonb[], result_type => $7::text[],
      result_id => $8::text[], tenant => $9::text)
