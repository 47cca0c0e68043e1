-- SPDX-License-Identifier: PostgreSQL
-- pgonce init --join: the database has joined; waits for the transactions that began before.
CALL once.divide()
