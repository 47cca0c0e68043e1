-- SPDX-License-Identifier: PostgreSQL
-- The lease, given back.
SELECT once_job.keep_release($1::text)
