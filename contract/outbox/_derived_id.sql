-- SPDX-License-Identifier: PostgreSQL
-- once._derived_id(salt, tenant, scope, key, kind): the id of an intent's event: a UUID of version 8 (RFC 9562: "vendor specific"), from
-- the names that make the event unique here and from the tenant's salt: two databases with the same names may share a broker, which drops
-- an event whose id it knows. salt: once.setting.salt. Inlined.
CREATE FUNCTION once._derived_id(salt bytea, tenant text, scope text, key text, kind text) RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT encode(overlay(substring(sha256(sha256(salt || convert_to(tenant, 'UTF8')) || 'e'::bytea
        || convert_to(ARRAY[tenant, scope, key, kind]::text, 'UTF8')) FROM 1 FOR 16) PLACING E'\\x800080' FROM 7), 'hex')::uuid
$$;
