-- SPDX-License-Identifier: PostgreSQL
-- once.dead_retry(consumer, message_id, tenant, reason): lets a parked message be tried again now,
-- with all its attempts before it. Messages of its key that are parked behind it follow. Recorded
-- in once.parked_decision. False where it is not parked. Raises P4041 where its id is a UUIDv7 of a
-- retired day: no attempt may run; 22023 for a missing reason, P4000 for the consumer, P4003 for
-- the tenant.
CREATE FUNCTION once.dead_retry(consumer text, message_id text, tenant text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    refused text;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    PERFORM once._reason(reason);
    refused := once._decide_message('retry', reason, consumer, tenant, message_id);
    IF refused <> '' THEN
        PERFORM once._refuse(refused, tenant, consumer, message_id);
    END IF;
    RETURN refused IS NULL;
END $$;
