-- SPDX-License-Identifier: PostgreSQL
-- The inbox's verdict on each message of a batch. birthdays: their ids are keys already.
SELECT ordinal, verdict, code
  FROM once.receive_many($1::text, $2::text[], $3::text[], $4::bytea[], $5::text, $6::boolean, traceparents => $7::text[],
           birthdays => true)
 ORDER BY ordinal
