-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: drops what the copy of single tables for subscription $1 has left.
SELECT once._move_release($1::oid)
