-- SPDX-License-Identifier: PostgreSQL
-- These are not parked any more.
SELECT once_job.message_applied($1::text, $2::text, $3::text[])
