-- SPDX-License-Identifier: PostgreSQL
-- The first partitions; every daemon adds more.
SELECT once.add_days();
