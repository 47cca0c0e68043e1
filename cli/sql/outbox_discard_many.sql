-- SPDX-License-Identifier: PostgreSQL
-- One piece of many decisions. $1 reason; $2 relay, $3 topic, $4 state, $5 emitted before (each NULL: all); $6 a dry run?, $7 after
-- which (NULL: from the beginning).
SELECT m.met_relay, m.met_topic, m.met_state, NULL, m.events, m.next
  FROM once.outbox_discard_many($1, $2, $3, $4, before => $5::timestamptz, dry_run => $6::boolean, after => $7) AS m
