-- SPDX-License-Identifier: PostgreSQL
-- Opens a transaction of reports on the batcher's connection of claims: one that waits longer than this for a row, which a
-- service that completes its intent itself may hold, goes again without them. Not SET LOCAL, which warns in a pipeline.
SELECT set_config('lock_timeout', '50ms', true)
