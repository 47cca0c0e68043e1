-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: what the nodes must have in common, and what it must know of each.
SELECT once._node()::text, once._move_facts()::text
