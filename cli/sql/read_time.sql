-- SPDX-License-Identifier: PostgreSQL
-- A time, as the server reads it. $1 a time, or $2 a span before now.
SELECT coalesce($1::timestamptz, clock_timestamp() - $2::interval)::text
