-- SPDX-License-Identifier: PostgreSQL
-- once.fingerprint(request, tenant): the salted SHA-256 of a request, to pass to start or claim. bytea and text: of exactly these bytes,
-- text in UTF-8, so that both give one hash: drivers differ in the type that they give a parameter. jsonb: of its canonical form
-- (docs/reference/fingerprint.md), so that a re-serialised body is the same request; cast a literal: once.fingerprint('...'::jsonb). It
-- never equals the fingerprint of bytes, and fingerprints of two tenants are never equal. NULL gives NULL, which start refuses (P4003).
--
-- Why it is written so: in PL/pgSQL, because a function in LANGUAGE sql is planned again at each call.
CREATE FUNCTION once.fingerprint(request jsonb, tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN sha256(once.salt(tenant) || 'j'::bytea || convert_to(once._json_text(request), 'UTF8'));
END $$;
CREATE FUNCTION once.fingerprint(request bytea, tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN sha256(once.salt(tenant) || 'b'::bytea || request);
END $$;
CREATE FUNCTION once.fingerprint(request text, tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN sha256(once.salt(tenant) || 'b'::bytea || convert_to(request, 'UTF8'));
END $$;
