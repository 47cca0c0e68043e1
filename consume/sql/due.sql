-- SPDX-License-Identifier: PostgreSQL
-- Parked messages that are due, with those waiting behind them if asked for, locked until the transaction ends. Returns the first,
-- and as many after it as fit into $6 bytes of payload in total.
SELECT d.message_id, d.topic, d.key, d.headers::text, d.payload, d.fingerprint, d.attempts
  FROM (SELECT m.*, sum(octet_length(m.payload)) OVER (ORDER BY m.nth ROWS UNBOUNDED PRECEDING) AS bytes
          FROM once_job.message_due($1::text, $2::text, $3::integer, $4::boolean, $5::boolean) WITH ORDINALITY
               AS m (message_id, topic, key, headers, payload, fingerprint, attempts, nth)) AS d
 WHERE d.nth = 1 OR d.bytes <= $6::bigint
 ORDER BY d.nth
