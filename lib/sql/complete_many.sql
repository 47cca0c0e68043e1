-- SPDX-License-Identifier: PostgreSQL
SELECT ord, verdict, error_code, error_message
  FROM once.complete_many($1::text[], $2::text[], $3::integer[], $4::integer[], $5::bytea[], $6::text[]::jsonb[],
      $7::text[], $8::text[], $9::text)
 ORDER BY ord
