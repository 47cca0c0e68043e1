-- SPDX-License-Identifier: PostgreSQL
-- Parked messages whose turn has come, with what follows them where that is asked for, locked until the transaction ends.
SELECT message_id, topic, key, headers::text, payload, fingerprint, attempts
  FROM once.message_due($1::text, $2::text, $3::integer, $4::boolean, $5::boolean)
