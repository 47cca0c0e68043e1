-- SPDX-License-Identifier: PostgreSQL
-- Which of these messages are parked or wait behind a parked one. Does not touch the inbox.
SELECT ordinal, verdict
  FROM once_job.message_look($1::text, $2::text, $3::text[], $4::text[], $5::boolean)
 ORDER BY ordinal
