-- SPDX-License-Identifier: PostgreSQL
-- once.dead_discard(consumer, message_id, tenant, reason): gives up a parked message: it will not be applied, and it is
-- entered in the inbox, so that it is a duplicate should the broker deliver it again. Messages of its key that are parked
-- behind it go on. Recorded in once.parked_decision. False where it is not parked. Waits while an attempt at it is under
-- way, and is false where that succeeded. Raises 22023 for a missing reason, P4029 where another transaction is receiving it,
-- P4000 for the consumer, P4003 for the tenant; and, as once.receive would, P4098 or P4001 where the id is a UUIDv7 whose day
-- has no partition or has not begun: nothing could keep it from being applied then.
CREATE FUNCTION once.dead_discard(consumer text, message_id text, tenant text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    refused text;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    PERFORM once._reason(reason);
    refused := once._decide_message('discard', reason, consumer, tenant, message_id);
    IF refused IN ('P4001', 'P4098') THEN
        PERFORM once._refuse_day(tenant, consumer, message_id, once._bucket(message_id));
        PERFORM once._refuse('P4098', tenant, consumer, message_id, 'its day was made just now');      -- since it was looked at
    ELSIF refused <> '' THEN
        PERFORM once._refuse(refused, tenant, consumer, message_id);
    END IF;
    RETURN refused IS NULL;
END $$;
