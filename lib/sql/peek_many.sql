-- SPDX-License-Identifier: PostgreSQL
SELECT ord, verdict, fence, state, response_status, response_headers::text, response_body, result_type, result_id,
    error_code, error_message, owner, lease_until::text, attempts, created_at::text, traceparent
  FROM once.peek_many($1::text[], $2::text[], $3::text) ORDER BY ord
