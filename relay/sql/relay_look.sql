-- SPDX-License-Identifier: PostgreSQL
-- Is there anything new?
SELECT l.reading, l.changed, l.flushed FROM once_job.relay_look($1::text, $2::text) AS l
