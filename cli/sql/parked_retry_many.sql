-- SPDX-License-Identifier: PostgreSQL
-- One piece of many decisions. $1 reason; $2 kind, $3 relay, $4 consumer, $5 tenant, $6 topic, $7 type, $8 error, $9 state, $10 emitted or
-- parked before (each NULL: all); $11 a dry run?, $12 after which (NULL: from the beginning).
SELECT m.met_kind, m.met_holder, m.met_topic, m.met_state, m.skipped, m.items, m.next
  FROM once.parked_retry_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::timestamptz, $11::boolean, after => $12) AS m
