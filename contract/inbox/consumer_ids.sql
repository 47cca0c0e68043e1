-- SPDX-License-Identifier: PostgreSQL
-- once.consumer_ids(consumer, tenant): how the inbox stores the messages of a consumer whose ids are UUIDv7, including parked ones:
-- 'opaque', with the prefix pgonce:id: and so without a day; 'uuidv7', unchanged, by their days. Empty if there are none. After a change
-- of birthdays (see once.receive) a message would be applied again, so pgonce consume checks this before it starts, and a program that
-- calls once.receive for a consumer must not change it. Raises P4000 for the consumer, P4003 for the tenant.
CREATE FUNCTION once.consumer_ids(consumer text, tenant text DEFAULT '') RETURNS text[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    RETURN array_remove(ARRAY[
        CASE WHEN EXISTS (SELECT FROM once.intent AS i
                           WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C"
                             AND i.key >= 'pgonce:id:' COLLATE "C" AND i.key < 'pgonce:id;' COLLATE "C" AND i.bucket = 0)
                  OR EXISTS (SELECT FROM once.parked_message AS p
                              WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C"
                                AND p.message_id >= 'pgonce:id:' COLLATE "C" AND p.message_id < 'pgonce:id;' COLLATE "C")
             THEN 'opaque' END,
        CASE WHEN EXISTS (SELECT FROM once.intent AS i
                           WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C" AND i.bucket > 0)
                  OR EXISTS (SELECT FROM once.archive AS a
                              WHERE a.tenant = tenant COLLATE "C" AND a.scope = consumer COLLATE "C" AND a.bucket > 0)
                  OR EXISTS (SELECT FROM once.parked_message AS p
                              WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C"
                                AND once._bucket(p.message_id) > 0)
             THEN 'uuidv7' END], NULL);
END $$;
