-- SPDX-License-Identifier: PostgreSQL
SELECT ord, verdict, fence, state, response_status, response_headers::text, response_body, result_type, result_id,
    error_code, error_message, lease_until::text, attempts, traceparent, kept_ms
  FROM once.claim_many($1::text[], $2::text[], $3::bytea[], $4::text, $5::bigint * interval '1 millisecond',
      $6::bigint * interval '1 millisecond', $7::text, traceparents => $8::text[], takeover => $9::boolean)
