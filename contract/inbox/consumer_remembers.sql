-- SPDX-License-Identifier: PostgreSQL
-- once_job.consumer_remembers(consumer, tenant): how long, at least, the inbox remembers a message of a consumer after it was applied
-- (its scope's retention), and whether the consumer has applied, parked or reported anything here yet. If it has, and its broker restarts
-- from messages older than that, they would be applied a second time, so pgonce consume checks this before it lets its broker do that.
-- Raises P4000 for the consumer, P4003 for the tenant.
CREATE FUNCTION once_job.consumer_remembers(consumer text, tenant text DEFAULT '') RETURNS TABLE (retention interval, has_run boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    retention := (once._policy(consumer)).retention;
    has_run := EXISTS (SELECT FROM once.consumer_position AS c WHERE c.consumer = consumer COLLATE "C" AND c.tenant = tenant COLLATE "C")
        OR EXISTS (SELECT FROM once.parked_message AS p WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C")
        OR EXISTS (SELECT FROM once.intent AS i WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C");
    RETURN NEXT;
END $$;
