-- SPDX-License-Identifier: PostgreSQL
-- once._relay_row(relay): the row of a relay, held until the transaction ends: every change of a relay's parked events is made under its
-- row, so that parking an event behind another and the end of that other never miss each other. An UPDATE and not only a lock: above READ
-- COMMITTED a change that the snapshot does not show then ends in 40001. Raises 22023 if there is no such relay.
CREATE FUNCTION once._relay_row(relay text) RETURNS once.relay LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    stored once.relay;
BEGIN
    UPDATE once.relay AS r
       SET written_by = CASE WHEN r.written_by = r.xmin THEN pg_current_xact_id()::xid ELSE '0' END
     WHERE r.relay = relay COLLATE "C" RETURNING r.* INTO stored;
    IF NOT FOUND THEN
        PERFORM once._refuse_relay('22023', relay, 'there is no such relay', 'once.outbox_summary() lists the relays.');
    END IF;
    PERFORM once._relay_sign(relay);
    RETURN stored;
END $$;
