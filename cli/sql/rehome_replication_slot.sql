-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: returns when all transactions that are writing have ended.
SELECT pg_create_logical_replication_slot(once._move_replication_slot(), 'pgoutput')
