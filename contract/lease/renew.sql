-- SPDX-License-Identifier: PostgreSQL
-- once.renew(scope, key, fence, lease, tenant): the heartbeat of a claimed attempt: its lease ends lease (default: the scope's) from now.
-- false: the intent is no longer this attempt's; stop the work if that is possible. A lease that has passed can be renewed as long as no
-- other attempt took over.
CREATE FUNCTION once.renew(scope text, key text, fence integer, lease interval DEFAULT NULL, tenant text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    PERFORM once._check_term('lease', lease, '7 days');
    RETURN once._renew(tenant, scope, key, bucket, fence, lease);
END $$;
