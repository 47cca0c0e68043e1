-- SPDX-License-Identifier: PostgreSQL
-- once.bind(role_name, tenant): lets a role name this tenant; once.unbind takes it back. For roles that are granted once_tenant. A role
-- that may name any tenant (once_app, a superuser) cannot be bound: the call raises 42501, because the binding would have no effect.
-- Raises P4003 for a tenant that is too long or contains a control character.
CREATE FUNCTION once.bind(role_name text, tenant text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF has_function_privilege(role_name, 'once.any_tenant()'::regprocedure, 'execute') THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('pgonce: role %I may name any tenant, so it cannot be bound', role_name),
            HINT = format('REVOKE once_app FROM %I; GRANT once_tenant TO %I;', role_name, role_name);
    END IF;
    IF tenant IS NULL OR length(tenant) > 255 THEN
        PERFORM once._refuse('P4003', tenant, NULL, NULL, 'a tenant is 0 to 255 characters');
    ELSIF tenant COLLATE "C" ~ E'[\\x01-\\x1f\\x7f]' THEN
        PERFORM once._refuse('P4003', tenant, NULL, NULL, 'the tenant contains a control character');
    END IF;
    INSERT INTO once.binding AS b VALUES (role_name, tenant) ON CONFLICT DO NOTHING;
END $$;
CREATE FUNCTION once.unbind(role_name text, tenant text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM once.binding AS b WHERE b.role_name = unbind.role_name COLLATE "C"
        AND b.tenant = unbind.tenant COLLATE "C";
    RETURN FOUND;
END $$;
