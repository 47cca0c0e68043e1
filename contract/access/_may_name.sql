-- SPDX-License-Identifier: PostgreSQL
-- once._may_name(tenant): raises P4003 unless the caller may name this tenant (NULL: all). The caller is the role that the session has
-- SET, otherwise the one that logged in (current_user is the owner here: SECURITY DEFINER). Raises before it reads anything, so a refused
-- caller cannot learn whether a key exists.
CREATE FUNCTION once._may_name(tenant text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    caller text := coalesce(nullif(current_setting('role'), 'none'), session_user::text);
BEGIN
    IF has_function_privilege(caller, 'once.any_tenant()'::regprocedure, 'execute') THEN
        RETURN;
    END IF;
    PERFORM FROM once.binding AS b WHERE b.role_name = caller COLLATE "C" AND b.tenant = _may_name.tenant COLLATE "C";
    IF NOT FOUND THEN
        PERFORM once._refuse('P4003', tenant, NULL, NULL, format('role %I is not bound to this tenant', caller),
            'the role is not bound to the tenant', 'An administrator binds a role to a tenant with once.bind(role, tenant).');
    END IF;
END $$;
