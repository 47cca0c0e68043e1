-- SPDX-License-Identifier: PostgreSQL
-- once.doubts_part(tenant, scope, error, take, after): the intents in doubt, as in the view once.in_doubt, in parts: at most take (500) of
-- them, reading for about 50 milliseconds. The tables are read by blocks, from their beginnings: so the order is roughly that of time,
-- the oldest first, and the archive comes last. tenant, scope and error (the error_code they were put in doubt with) narrow it; NULL does
-- not. To continue, pass next of the last row as after; NULL means done. The last row has no intent, but share: what part of the tables
-- has been read. An intent that is in doubt at the first call, and stays so, is listed once. Raises 22023 for an invalid cursor, P4003
-- for the tenant.
CREATE FUNCTION once.doubts_part(tenant text DEFAULT NULL, scope text DEFAULT NULL, error text DEFAULT NULL, take integer DEFAULT 50,
    after text DEFAULT NULL)
RETURNS TABLE (tenant text, scope text, key text, fence integer, attempts integer, owner text, created_at timestamptz,
    lease_until timestamptz, since timestamptz, error_code text, error_message text, traceparent text, archived boolean, next text,
    share double precision)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT once._authorise($1);         -- NULL, all tenants: for roles that are not bound
    SELECT (d.stored).tenant, (d.stored).scope, (d.stored).key, (d.stored).fence, (d.stored).attempts, (d.stored).owner,
           (d.stored).created_at, (d.stored).lease_until, (d.stored).updated_at, (d.stored).error_code, (d.stored).error_message,
           (d.stored).traceparent, d.source = 'once.archive'::regclass, d.next, d.share
      FROM once._doubtful($1, $2, $3, NULL, NULL, least(greatest(coalesce($4, 50), 0), 500), $5, '50 milliseconds') AS d
$$;
