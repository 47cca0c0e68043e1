-- SPDX-License-Identifier: PostgreSQL
-- once_job.message_applied(consumer, tenant, message_ids): deletes parked messages, in the transaction of their effect (after
-- once.receive returned process, or duplicate). Returns how many were parked. Raises P4000 for the consumer, P4003 for the tenant.
CREATE FUNCTION once_job.message_applied(consumer text, tenant text, message_ids text[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    deleted integer;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    -- One look-up each, and then by address: see once._promote.
    DELETE FROM once.parked_message AS p
     USING (SELECT a.address FROM unnest(message_ids) AS u (id)
             CROSS JOIN LATERAL (SELECT k.ctid AS address FROM once.parked_message AS k
                                  WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                    AND k.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                                  ORDER BY k.message_id LIMIT 1) AS a) AS f
     WHERE p.ctid = f.address;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END $$;
