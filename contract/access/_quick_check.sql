-- SPDX-License-Identifier: PostgreSQL
-- once._quick_check(tenant, scope, fingerprint): the quick check of a call's arguments, except its key. It accepts nothing invalid; what
-- it cannot judge (a long name) goes to once._check. Inlined.
CREATE FUNCTION once._quick_check(tenant text, scope text, fingerprint bytea) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT scope <> '' AND octet_length(tenant || scope) <= 255
       AND octet_length(fingerprint) IN (16, 20, 28, 32, 48, 64)       -- the lengths of the usual hashes
$$;
