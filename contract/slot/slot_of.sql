-- SPDX-License-Identifier: PostgreSQL
-- once.slot_of(tenant): the slot of a tenant, 0 to 63: one of 64 equal ranges of the hash by which PostgreSQL and Citus spread text.
-- If several nodes share the tenants, all tenants of a slot move together. Before an installation is divided, it may replace this
-- function by another that matches its router: IMMUTABLE, 0 to 63 for every text, and the same on every node. After that it must never
-- change.
--
-- Why it is written so: it is inlined, so it has no settings, and names the schema of everything instead.
CREATE FUNCTION once.slot_of(tenant text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (pg_catalog.hashtext(tenant) OPERATOR(pg_catalog.>>) 26) OPERATOR(pg_catalog.+) 32
$$;
