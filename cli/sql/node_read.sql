-- SPDX-License-Identifier: PostgreSQL
-- pgonce init --join, and pgonce doctor --nodes: what a node says of itself.
SELECT once._node()::text AS node
