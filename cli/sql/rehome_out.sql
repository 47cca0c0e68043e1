-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: the rest of the memory of slot $1, which is not replicated; NULL: it is too large.
SELECT o.memory::text, o.bytes FROM once._move_out($1) AS o
