-- SPDX-License-Identifier: PostgreSQL
-- once.parked_discard(id, reason, relay, consumer, tenant): gives up a parked event or message; those parked behind it, of its aggregate
-- or key, continue. The arguments are those of once.parked_retry. An event: this relay (NULL: each relay that has it parked) no longer
-- delivers it, and it stays in the outbox; an attempt that is under way at this moment may still succeed. A delayed event is deleted; see
-- once.cancel_event for applications. A message: it will not be applied, and it is entered in the inbox, so that it is a duplicate if the
-- broker delivers it again. Waits while an attempt at it is under way, and returns false if that succeeded. Recorded in
-- once.parked_decision. False if it is neither parked nor delayed. Raises 22023 for a missing reason or an unknown relay, P4029 for a
-- message that another transaction is receiving, P4000 for the consumer, P4003 for the tenant; and, as once.receive would, P4098 or P4001
-- for a message whose id is a UUIDv7 of a day that has no partition or has not begun: no row could then prevent that it is applied.
CREATE FUNCTION once.parked_discard(id text, reason text, relay text DEFAULT NULL, consumer text DEFAULT NULL, tenant text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN once._decide_one('discard', $1, $2, $3, $4, $5);
END $$;
