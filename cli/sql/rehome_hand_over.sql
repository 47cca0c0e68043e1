-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: hands slot $1 over with epoch $2 to node $3.
SELECT once._move_hand_over($1, $2, $3)
