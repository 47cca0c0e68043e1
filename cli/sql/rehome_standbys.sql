-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: the standbys that have not flushed everything within $1 milliseconds; NULL: none.
SELECT once._standbys_behind($1 * interval '1 millisecond')
