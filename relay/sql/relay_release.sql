-- SPDX-License-Identifier: PostgreSQL
-- Moves delayed events that are due to the outbox.
SELECT r.released, r.wait_ms FROM once_job.relay_release($1::integer) AS r
