-- SPDX-License-Identifier: PostgreSQL
-- pgonce init --join: what the node to join says of itself.
SELECT once._node()::text AS node
