-- SPDX-License-Identifier: PostgreSQL
-- The least that a round trip can ask for.
SELECT 1;
