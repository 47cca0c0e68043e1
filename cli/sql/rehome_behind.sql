-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: why the events of slot $1 that are older than $2 milliseconds hold it up; NULL: they do not.
SELECT once._move_behind($1, clock_timestamp() - $2 * interval '1 millisecond')
