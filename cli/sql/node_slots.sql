-- SPDX-License-Identifier: PostgreSQL
-- --nodes: the slots of a node; no rows: it is not divided.
SELECT s.slot, s.epoch, s.open FROM once.slots() AS s
