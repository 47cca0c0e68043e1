-- SPDX-License-Identifier: PostgreSQL
-- Parked messages whose turn has come, locked until the transaction ends.
SELECT message_id, topic, key, headers::text, payload, fingerprint, attempts
  FROM once.message_due($1::text, $2::text, $3::integer, $4::boolean)
