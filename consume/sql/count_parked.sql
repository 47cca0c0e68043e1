-- SPDX-License-Identifier: PostgreSQL
SELECT once_job.message_count($1::text, $2::text)
