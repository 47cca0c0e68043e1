-- SPDX-License-Identifier: PostgreSQL
-- For how many milliseconds the inbox remembers applied messages, and whether the consumer has run before.
SELECT (1000 * extract(epoch FROM m.retention))::bigint, m.has_run
  FROM once_job.consumer_remembers($1::text, $2::text) AS m
