-- SPDX-License-Identifier: PostgreSQL
-- once._find_among(tenant, scope, key, now): one intent as once.find shows it, or no row.
CREATE FUNCTION once._find_among(of_tenant text, of_scope text, of_key text, now timestamptz)
RETURNS TABLE (tenant text, scope text, key text, state text, verdict text, fence integer, attempts integer, owner text,
    created_at timestamptz, updated_at timestamptz, lease_until timestamptz, result_type text, result_id text, traceparent text,
    archived boolean) LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    day integer := once._bucket(of_key);
    stored once.intent;
    from_archive boolean := false;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = of_tenant COLLATE "C" AND i.scope = of_scope COLLATE "C" AND i.key = of_key COLLATE "C" AND i.bucket = day;
    IF NOT FOUND THEN
        stored := once._archived(of_tenant, of_scope, of_key, day);
        from_archive := true;
    END IF;
    IF stored.state IS NOT NULL THEN
        RETURN QUERY SELECT stored.tenant::text, stored.scope::text, stored.key::text, stored.state::text,
            once._verdict(true, stored.state, stored.lease_until, now, 0, NULL, 'takeover'), stored.fence, stored.attempts,
            stored.owner::text, stored.created_at, stored.updated_at, stored.lease_until, stored.result_type::text,
            stored.result_id::text, stored.traceparent::text, from_archive;
    END IF;
END $$;
