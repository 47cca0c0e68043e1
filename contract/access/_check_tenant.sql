-- SPDX-License-Identifier: PostgreSQL
-- once._check_tenant(tenant, scope, key): raises P4003 for a tenant that is missing or too long, or that the caller may not name. Says
-- nothing of whether this node serves it. scope, key: for the error alone.
CREATE FUNCTION once._check_tenant(tenant text, scope text, key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF tenant IS NULL OR length(tenant) > 255 OR NOT once._find_native() THEN
        PERFORM once._refuse('P4003', tenant, scope, key, NULL, 'the tenant is missing or too long',
            'A tenant is 0 to 255 characters; use '''' if there is only one.');
    END IF;
    PERFORM once._may_name(tenant);
END $$;
