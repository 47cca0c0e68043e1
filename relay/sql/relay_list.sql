-- SPDX-License-Identifier: PostgreSQL
-- What there is between two snapshots.
SELECT l.id, l.xid, l.day FROM once_job.relay_list($1::text, $2::text, $3::text, $4::bigint, $5::integer) AS l
