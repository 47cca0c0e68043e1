-- SPDX-License-Identifier: PostgreSQL
-- The sentence and hint of a SQLSTATE of the contract.
SELECT e.message, e.hint FROM once.errors() AS e WHERE e.code = $1 COLLATE "C"
