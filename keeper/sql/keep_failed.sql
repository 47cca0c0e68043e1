-- SPDX-License-Identifier: PostgreSQL
-- Notes the failure of a step.
SELECT once_job.keep_failed($1::text, $2::text, $3::text, $4::text)
