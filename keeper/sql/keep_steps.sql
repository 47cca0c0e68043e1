-- SPDX-License-Identifier: PostgreSQL
-- The steps of a round, in order.
SELECT s.step, s.what FROM once_job.keep_steps() AS s ORDER BY s.ord
