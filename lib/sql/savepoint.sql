-- SPDX-License-Identifier: PostgreSQL
-- Behind start: what an effect that fails for good is rolled back to.
SAVEPOINT once_effect
