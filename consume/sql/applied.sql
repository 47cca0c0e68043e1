-- SPDX-License-Identifier: PostgreSQL
-- These messages are applied and no longer parked.
SELECT once_job.message_applied($1::text, $2::text, $3::text[])
