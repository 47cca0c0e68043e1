-- SPDX-License-Identifier: PostgreSQL
-- Makes durable what is visible: by the commit of this statement.
SELECT once_job.relay_flush()
