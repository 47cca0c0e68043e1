-- SPDX-License-Identifier: PostgreSQL
-- once.keeper_lease(): which keeper works, when its lease ends, and when the last round began. No row: no keeper has ever worked.
CREATE FUNCTION once.keeper_lease() RETURNS TABLE (keeper text, lease_until timestamptz, last_round timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT k.keeper, k.lease_until, k.last_round FROM once.keeper AS k
$$;
