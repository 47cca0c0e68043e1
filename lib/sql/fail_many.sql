-- SPDX-License-Identifier: PostgreSQL
SELECT ord, verdict, refused_code AS error_code, refused_message AS error_message
  FROM once.fail_many($1::text[], $2::text[], $3::integer[], $4::boolean[], $5::text[], $6::text[], $7::integer[],
      response_body => $8::bytea[], response_headers => $9::text[]::jsonb[], tenant => $10::text, redirect => $11::bytea[])
