-- SPDX-License-Identifier: PostgreSQL
-- once_job.close_slot(slot, wait): closes a slot on this node, for pgonce rehome. At once, every call for its tenants raises P4097. Then it
-- waits, at most this long, for the transactions that were let in before, prepared ones included. True: they have all ended, and the slot
-- stays closed once this transaction has committed. False: some are still open, and the slot is open again, as before. If the slot is
-- already closed, it waits in the same way and never opens it. Raises 22023 if there is no such slot or the node is not divided; 55006
-- while another session closes or opens the slot.
CREATE FUNCTION once_job.close_slot(slot integer, wait interval DEFAULT '5 seconds') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 AS $$
DECLARE
    state bigint := once._hold_slot(slot);
    wait_ms numeric := extract(epoch FROM wait) * 1000;
BEGIN
    IF (wait_ms BETWEEN 1 AND 86400000) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: wait is out of range: %s', coalesce(wait::text, 'NULL')),
            HINT = '1 millisecond to 1 day.';
    END IF;
    BEGIN
        PERFORM setval(to_regclass('once.slot_' || slot || '_seq'), state - state % 2);
        PERFORM set_config('lock_timeout', ceil(wait_ms)::text, true);
        PERFORM pg_advisory_xact_lock(20790, slot);
        RETURN true;
    EXCEPTION WHEN OTHERS OR query_canceled THEN
        PERFORM setval(to_regclass('once.slot_' || slot || '_seq'), state);
        IF SQLSTATE <> '55P03' THEN
            RAISE;
        END IF;
        RETURN false;
    END;
END $$;
