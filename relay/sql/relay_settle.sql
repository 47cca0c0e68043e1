-- SPDX-License-Identifier: PostgreSQL
-- What became of a batch, in one commit.
SELECT once_job.relay_settle($1::text, $2::text, $3::text, $4::bigint, $5::bigint[],
                         ARRAY(SELECT p FROM jsonb_populate_recordset(NULL::once.parking, $6::jsonb) AS p))
