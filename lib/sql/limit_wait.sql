-- SPDX-License-Identifier: PostgreSQL
-- Opens a transaction of reports on the batcher's connection for claims: a report that waits longer than this for a row, which
-- a service that completes its own intent may hold, is sent again without them. Not SET LOCAL, which warns in a pipeline.
SELECT set_config('lock_timeout', '50ms', true)
