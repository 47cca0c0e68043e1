-- SPDX-License-Identifier: PostgreSQL
-- once.keeper_lease(): which keeper works, until when its lease lasts, and when a round was begun
-- last. No row: none ever did.
CREATE FUNCTION once.keeper_lease() RETURNS TABLE (keeper text, lease_until timestamptz, last_round timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT k.keeper, k.lease_until, k.last_round FROM once.keeper AS k
$$;
