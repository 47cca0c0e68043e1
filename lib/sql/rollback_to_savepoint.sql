-- SPDX-License-Identifier: PostgreSQL
-- Rolls back an effect that failed for good. The note of start stays.
ROLLBACK TO SAVEPOINT once_effect
