-- SPDX-License-Identifier: PostgreSQL
-- The partitions of the days to come, where nobody else has made them.
SELECT once.add_days()
