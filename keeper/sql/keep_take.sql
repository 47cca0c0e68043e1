-- SPDX-License-Identifier: PostgreSQL
-- Takes or renews the lease, for $2 milliseconds.
SELECT once_job.keep_take($1::text, $2::bigint * interval '1 millisecond')
