-- SPDX-License-Identifier: PostgreSQL
-- once._quick_check(tenant, scope, fingerprint): the quick test of a call's arguments but for its key. It lets nothing wrong through;
-- what it does not know (a long name) is left to once._check. Inlined.
CREATE FUNCTION once._quick_check(tenant text, scope text, fingerprint bytea) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT scope <> '' AND octet_length(tenant || scope) <= 255
       AND octet_length(fingerprint) IN (16, 20, 28, 32, 48, 64)       -- of the usual hashes
$$;
