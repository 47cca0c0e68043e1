-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: whether the whole memory of slot $1 with epoch $2 arrives within $3 milliseconds.
SELECT once._move_arrived($1, $2, $3 * interval '1 millisecond')
