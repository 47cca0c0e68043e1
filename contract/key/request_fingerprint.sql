-- SPDX-License-Identifier: PostgreSQL
-- once.request_fingerprint(method, target, content_type, body, tenant, canonical_json): the fingerprint that the gateway stores of an
-- HTTP request, byte for byte, so that a retry may use either door. target: the Host header in lower case, then path and query as in the
-- request line, 'shop.test/pay?dry=0'; content_type: the header's value, or NULL if there is no such header; body: NULL if there is none.
-- Pass '' for a part that the location's once_fingerprint leaves out. canonical_json: as the location's once_canonical_json. A body given
-- as text is hashed as its bytes in UTF-8, so a driver's string is never parsed as bytea escapes. Specified, with examples, in
-- docs/reference/fingerprint.md.
CREATE FUNCTION once.request_fingerprint(method text, target text, content_type text, body bytea, tenant text DEFAULT '',
    canonical_json boolean DEFAULT false) RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts bytea[] := ARRAY[convert_to(method, 'UTF8'), convert_to(coalesce(content_type, ''), 'UTF8'),
        coalesce(CASE WHEN canonical_json THEN once._json_body(body) END, body, ''::bytea), convert_to(target, 'UTF8')];
    hashed bytea := once.salt(tenant) || 'r'::bytea;
    part bytea;
BEGIN
    -- Each part follows its length, so that no two different requests give the same bytes.
    FOREACH part IN ARRAY parts LOOP
        hashed := hashed || int8send(octet_length(part)) || part;
    END LOOP;
    RETURN sha256(hashed);
END $$;
CREATE FUNCTION once.request_fingerprint(method text, target text, content_type text, body text, tenant text DEFAULT '',
    canonical_json boolean DEFAULT false) RETURNS bytea LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN once.request_fingerprint(method, target, content_type, convert_to(body, 'UTF8'), tenant, canonical_json);
END $$;
