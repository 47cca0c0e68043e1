-- SPDX-License-Identifier: PostgreSQL
-- Opens the transaction of an execution, at the database's default isolation level.
BEGIN
