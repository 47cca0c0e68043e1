-- SPDX-License-Identifier: PostgreSQL
-- In the caller's transaction.
SELECT verdict, fence, state, response_status, response_headers::text, response_body, result_type, result_id,
    error_code, error_message, traceparent
  FROM once.start($1::text, $2::text, $3::bytea, $4::text, traceparent => $5::text)
