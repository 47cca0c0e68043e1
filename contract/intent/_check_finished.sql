-- SPDX-License-Identifier: PostgreSQL
-- once._check_finished(tenant, scope, key, fence): raises P4013 where an intent that this transaction has started under this
-- fence has no outcome. Asked when the transaction ends: by the trigger of once.unfinished, and by pgonce_native.
CREATE FUNCTION once._check_finished(tenant text, scope text, key text, fence integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
BEGIN
    IF NOT once._has_outcome(tenant, scope, key, fence) THEN
        PERFORM once._refuse('P4013', tenant, scope, key);
    END IF;
END $$;
