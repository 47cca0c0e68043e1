-- SPDX-License-Identifier: PostgreSQL
ROLLBACK TO SAVEPOINT part
