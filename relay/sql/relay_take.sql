-- SPDX-License-Identifier: PostgreSQL
-- The relay's lock, for this session, and its progress.
SELECT t.taken, t.seen, t.reading, t.after_id FROM once_job.relay_take($1::text, $2::text[], $3::boolean) AS t
