-- SPDX-License-Identifier: PostgreSQL
-- look_up(bucket): the stored intent, as a once.started. Its verdict is replay_success if it succeeded with this request, else NULL.
SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded' THEN 'replay_success' END, 'succeeded', i.response_status,
       i.response_body, i.response_headers, i.result_type, i.result_id, i.error_code, i.error_message, i.fence, i.traceparent
  INTO answer FROM once.intent AS i
 WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
   AND i.bucket = {bucket};
