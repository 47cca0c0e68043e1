-- SPDX-License-Identifier: PostgreSQL
-- insert_outcome(bucket, fence, then): inserts an intent that is finished at once.
INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                              traceparent, response_status, response_body, response_headers, result_type, result_id, error_code,
                              error_message)
VALUES (now, now, now, {bucket}, {fence}, 1, state::once.state, tenant, scope, key, fingerprint,
        traceparent, response_status, response_body, response_headers, result_type, result_id, left(error_code, 255),
        left(error_message, 4096)) {then}
