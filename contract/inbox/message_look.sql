-- SPDX-License-Identifier: PostgreSQL
-- once_job.message_look(consumer, tenant, message_ids[], keys[], skip_dead): the parked state of messages, without the inbox: for a
-- consumer that works under leases (once.claim_many) and so cannot call once.receive_many. One row per element, in order (ordinal from
-- 1): 'parked' (the message itself is), 'blocked' (one of its key is; with skip_dead: and not dead), or 'free'. Writes nothing. Raises
-- 22023 for arrays of unequal length or more than 10,000 elements, P4000 for the consumer, P4003 for the tenant.
CREATE FUNCTION once_job.message_look(consumer text, tenant text, message_ids text[], keys text[],
    skip_dead boolean DEFAULT false) RETURNS TABLE (ordinal integer, verdict text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch(tenant, once._length(message_ids, 0),
        once._length(keys, once._length(message_ids, 0)));
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    RETURN QUERY
    SELECT u.ord::integer,
           CASE WHEN (SELECT true FROM once.parked_message AS m
                              WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C"
                                AND m.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                              ORDER BY m.message_id LIMIT 1) THEN 'parked'
                WHEN (SELECT true FROM once.parked_message AS k
                              WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                AND k.key_hash = hashtextextended(u.key COLLATE "C", 0)
                                AND NOT (skip_dead AND k.state = 'dead')
                              ORDER BY k.key_hash, k.position LIMIT 1) THEN 'blocked'
                ELSE 'free' END
      FROM unnest(message_ids, keys) WITH ORDINALITY AS u (id, key, ord)
     ORDER BY u.ord;
END $$;
