-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: publishes the memory of slots $1.
SELECT once._move_publish($1::integer[])
