-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: stores it.
SELECT once._move_in($1::jsonb)
