-- SPDX-License-Identifier: PostgreSQL
-- The first partitions; every daemon tops them up in passing.
SELECT once.add_days();
