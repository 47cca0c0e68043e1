-- SPDX-License-Identifier: PostgreSQL
-- The names of the relays that there are.
SELECT coalesce(json_agg(DISTINCT s.relay), '[]'::json) FROM once.outbox_summary() AS s
