-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: removes publication and replication slot.
SELECT once._move_unpublish()
