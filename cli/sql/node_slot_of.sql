-- SPDX-License-Identifier: PostgreSQL
-- --nodes: the slot of a tenant. $1 tenant.
SELECT once.slot_of($1)
