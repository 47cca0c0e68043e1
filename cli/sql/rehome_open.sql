-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: opens slot $1 with epoch $2.
SELECT once._move_open($1, $2)
