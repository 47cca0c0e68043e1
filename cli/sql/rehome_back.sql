-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: opens slot $1 again where it has closed; NULL: it was handed over.
SELECT once._move_back($1)
