-- SPDX-License-Identifier: PostgreSQL
-- once_job.message_count(consumer, tenant, most): how many messages a consumer has parked; counts no further than `most`
-- (NULL: all). Raises P4000 for the consumer, P4003 for the tenant.
CREATE FUNCTION once_job.message_count(consumer text, tenant text DEFAULT '', most bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    RETURN (SELECT count(*) FROM (SELECT FROM once.parked_message AS p
                                   WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" LIMIT most) AS l);
END $$;
