-- SPDX-License-Identifier: PostgreSQL
-- once._follow_slots(): makes the relay's row of each capture follow its slot: once the slot has confirmed the mark, everything that the
-- mark sees is done, and a new mark is set. If the slot cannot be trusted, that is recorded, and nothing follows it until
-- once.relay_adopt, even if it recovers: a slot that was gone and exists again is another slot. Called by the keeper in each round, and
-- by once.retire_outbox.
CREATE FUNCTION once._follow_slots() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := clock_timestamp();
    capture once.capture;
    slot record;
BEGIN
    FOR capture IN SELECT c.* FROM once.capture AS c WHERE c.broken IS NULL ORDER BY c.slot FOR UPDATE LOOP
        slot := once._slot(capture.slot, capture.server);
        IF slot.why IS NOT NULL THEN
            UPDATE once.capture AS c SET broken = slot.why, broken_since = now WHERE c.slot = capture.slot;
        ELSIF slot.confirmed >= capture.mark_lsn THEN
            UPDATE once.relay AS r
               SET seen = capture.mark, progressed_at = now, written_by = pg_current_xact_id()::xid
             WHERE r.relay = capture.slot AND r.written_by = r.xmin;
            IF FOUND THEN
                PERFORM once._relay_sign(capture.slot);
                PERFORM once._mark_slot(capture.slot, slot.now_on);
            END IF;
        END IF;
    END LOOP;
END $$;
