-- SPDX-License-Identifier: PostgreSQL
-- How many events are parked, counted up to a limit.
SELECT once_job.relay_parked($1::text, $2::bigint, $3::boolean) AS parked
