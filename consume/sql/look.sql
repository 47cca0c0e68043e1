-- SPDX-License-Identifier: PostgreSQL
-- Which of these are parked, or stand behind one that is; the inbox is not touched.
SELECT ordinal, verdict
  FROM once_job.message_look($1::text, $2::text, $3::text[], $4::text[], $5::boolean)
 ORDER BY ordinal
