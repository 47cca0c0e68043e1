-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: closes slot $1 within $2 milliseconds; the epoch with which it opens at the other node, or NULL.
SELECT once._move_close($1, $2 * interval '1 millisecond')
