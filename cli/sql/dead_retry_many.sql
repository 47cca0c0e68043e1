-- SPDX-License-Identifier: PostgreSQL
-- One piece of many decisions. $1 reason; $2 consumer, $3 tenant, $4 topic, $5 type, $6 error, $7 state, $8 parked before (each NULL:
-- all); $9 a dry run?, $10 after which (NULL: from the beginning).
SELECT m.met_consumer, m.met_topic, m.met_state, m.skipped, m.messages, m.next
  FROM once.dead_retry_many($1, $2, $3, $4, $5, $6, $7, $8::timestamptz, $9::boolean, after => $10) AS m
