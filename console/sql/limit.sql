-- SPDX-License-Identifier: PostgreSQL
-- What holds for this transaction: how long a statement may take, and that times are written in UTC.
SELECT set_config('statement_timeout', '5000', true), set_config('lock_timeout', '2000', true), set_config('TimeZone', 'UTC', true)
