-- SPDX-License-Identifier: PostgreSQL
-- Gives the lease back.
SELECT once_job.keep_release($1::text)
