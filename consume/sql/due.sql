-- SPDX-License-Identifier: PostgreSQL
-- Parked messages whose turn has come, with what follows them where that is asked for, locked until the transaction ends.
-- The first, and those behind it whose payloads together have at most so many bytes.
SELECT d.message_id, d.topic, d.key, d.headers::text, d.payload, d.fingerprint, d.attempts
  FROM (SELECT m.*, sum(octet_length(m.payload)) OVER (ORDER BY m.nth ROWS UNBOUNDED PRECEDING) AS bytes
          FROM once_job.message_due($1::text, $2::text, $3::integer, $4::boolean, $5::boolean) WITH ORDINALITY
               AS m (message_id, topic, key, headers, payload, fingerprint, attempts, nth)) AS d
 WHERE d.nth = 1 OR d.bytes <= $6::bigint
 ORDER BY d.nth
