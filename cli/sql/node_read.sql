-- SPDX-License-Identifier: PostgreSQL
-- pgonce init --join, and pgonce doctor --nodes: what a node says of itself, and its slots (NULL: it is not divided).
SELECT once._node()::text AS node,
       (SELECT jsonb_agg(jsonb_build_array(s.slot, s.epoch, s.open) ORDER BY s.slot) FROM once.slots() AS s)::text AS slots
