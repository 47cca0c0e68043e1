-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: subscribes to the node that $1 connects to, by its replication slot $2.
SELECT once._move_subscribe($1, $2)
