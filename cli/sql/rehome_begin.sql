-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: waits until no keeper deletes any more; where the subscription is, starts it. $1: the
-- months of the archive at the old node.
SELECT once._move_begin($1::jsonb)
