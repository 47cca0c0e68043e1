-- SPDX-License-Identifier: PostgreSQL
-- once.fingerprint(request, tenant): the salted SHA-256 of a request, to pass to begin or claim. jsonb: of its
-- canonical form, so that a re-serialised body is the same request; bytea and text: of exactly these bytes. The three
-- never coincide (each has its own tag), and two tenants' never do. Cast a literal: once.fingerprint('...'::jsonb).
-- NULL gives NULL, which begin refuses (P4003). PL/pgSQL: a function in LANGUAGE sql is planned anew at each call.
CREATE FUNCTION once.fingerprint(request jsonb, tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN sha256(once.salt(tenant) || 'j'::bytea || convert_to(request::text, 'UTF8'));
END $$;
CREATE FUNCTION once.fingerprint(request bytea, tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN sha256(once.salt(tenant) || 'b'::bytea || request);
END $$;
CREATE FUNCTION once.fingerprint(request text, tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN sha256(once.salt(tenant) || 't'::bytea || convert_to(request, 'UTF8'));
END $$;
