-- SPDX-License-Identifier: PostgreSQL
-- once.parked_retry(id, reason, relay, consumer, tenant): lets a parked event or message be retried now, with a full set of attempts.
-- Those parked behind it, of its aggregate or key, follow. consumer NULL: the event of this id, with this relay (NULL: with every relay
-- that has it parked); a delayed event (once.emit_later) is due now. A relay's attempt that is under way counts as the first of them.
-- consumer given: its message of this id, of this tenant (NULL: ''); while an attempt at it is under way, the call waits. Recorded in
-- once.parked_decision. False if it is neither parked nor delayed. Raises P4041 for a message whose id is a UUIDv7 of a retired day: no
-- attempt may run; 22023 for a missing reason or an unknown relay, P4000 for the consumer, P4003 for the tenant.
CREATE FUNCTION once.parked_retry(id text, reason text, relay text DEFAULT NULL, consumer text DEFAULT NULL, tenant text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN once._decide_one('retry', $1, $2, $3, $4, $5);
END $$;
