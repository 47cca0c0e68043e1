-- SPDX-License-Identifier: PostgreSQL
-- The lease, taken or renewed: for so many milliseconds.
SELECT once_job.keep_take($1::text, $2::bigint * interval '1 millisecond')
