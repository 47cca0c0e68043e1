-- SPDX-License-Identifier: PostgreSQL
-- Takes an effect back that failed for good. What start noted stays.
ROLLBACK TO SAVEPOINT once_effect
