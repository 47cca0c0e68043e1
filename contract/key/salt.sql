-- SPDX-License-Identifier: PostgreSQL
-- once.salt(tenant): the 32-byte salt of a tenant's fingerprints, for clients that compute them. Derived from the installation's random
-- salt, so that a new tenant needs no row (and no wait for another session that writes it). Raises P4003.
CREATE FUNCTION once.salt(tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- The check of once.start, inlined: a call costs more than the rest of this function.
    IF (length(tenant) <= 255 AND current_setting('role') = 'none'
        AND has_function_privilege(session_user, 'once.any_tenant()'::regprocedure, 'execute')) IS NOT TRUE THEN
        PERFORM once._check_tenant(tenant, 'salt', 'salt');
    END IF;
    RETURN (SELECT sha256(s.salt || convert_to(salt.tenant, 'UTF8')) FROM once.setting AS s WHERE s.only_row);
END $$;
