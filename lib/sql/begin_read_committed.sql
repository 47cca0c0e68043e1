-- SPDX-License-Identifier: PostgreSQL
-- Opens the transaction of an execution.
BEGIN ISOLATION LEVEL READ COMMITTED
