-- SPDX-License-Identifier: PostgreSQL
-- Does one piece of a step.
SELECT k.done, k.more, k.command, k.detail FROM once_job.keep_step($1::text, $2::text, $3::boolean) AS k
