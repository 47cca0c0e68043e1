-- SPDX-License-Identifier: PostgreSQL
-- once._check_finished(tenant, scope, key, fence): raises P4013 if an intent that this transaction started under this fence has no
-- outcome. Called at the end of the transaction, by the trigger of once.unfinished and by pgonce_native. For a tenant that the caller may
-- not name it returns without a check, as once._authorise would refuse: a caller who sets once.started by hand learns nothing from it.
CREATE FUNCTION once._check_finished(tenant text, scope text, key text, fence integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
DECLARE
    caller text := coalesce(nullif(current_setting('role'), 'none'), session_user::text);
BEGIN
    IF NOT has_function_privilege(caller, 'once.any_tenant()'::regprocedure, 'execute') THEN
        PERFORM FROM once.binding AS b WHERE b.role_name = caller COLLATE "C" AND b.tenant = _check_finished.tenant COLLATE "C";
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF NOT once._has_outcome(tenant, scope, key, fence) THEN
        PERFORM once._refuse('P4013', tenant, scope, key);
    END IF;
END $$;
