-- SPDX-License-Identifier: PostgreSQL
-- How long a lease, as the contract told it, still holds by the clock of the database, in milliseconds.
SELECT ceil(extract(epoch FROM $1::timestamptz - clock_timestamp()) * 1000)::bigint AS ms
