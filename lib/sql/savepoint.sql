-- SPDX-License-Identifier: PostgreSQL
-- Sent after start: an effect that fails for good is rolled back to it.
SAVEPOINT once_effect
