-- SPDX-License-Identifier: PostgreSQL
-- once.any_tenant(): does nothing. The right to EXECUTE it is the right to name any tenant; a role without it may name only the tenants
-- that once.bind gave it. A privilege, because checking one needs no table look-up.
CREATE FUNCTION once.any_tenant() RETURNS void LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT $$;
