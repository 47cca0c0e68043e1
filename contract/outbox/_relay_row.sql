-- SPDX-License-Identifier: PostgreSQL
-- once._relay_row(relay): the row of a relay, held until the transaction ends: whoever changes what is parked with a relay
-- does so under its row, so that an event that is parked behind another and the other's end never miss each other. An
-- UPDATE and no mere lock: above READ COMMITTED a change that the snapshot does not show then ends in 40001. Raises 22023
-- where there is no such relay.
CREATE FUNCTION once._relay_row(relay text) RETURNS once.relay LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    stored once.relay;
BEGIN
    UPDATE once.relay AS r
       SET written_by = CASE WHEN r.written_by = r.xmin THEN pg_current_xact_id()::xid ELSE '0' END
     WHERE r.relay = relay COLLATE "C" RETURNING r.* INTO stored;
    IF NOT FOUND THEN
        PERFORM once._refuse_relay('22023', relay, 'there is no such relay', 'once.outbox_summary() names those there are.');
    END IF;
    PERFORM once._relay_sign(relay);
    RETURN stored;
END $$;
