-- SPDX-License-Identifier: PostgreSQL
-- once._move_hand_over(slot, epoch, node): the point of no return: from this commit on, only the other node may open the slot, with this
-- epoch, and a second run of pgonce rehome goes on from here. Raises 55000 if the slot is not closed by this move any more.
CREATE FUNCTION once._move_hand_over(slot integer, epoch bigint, node text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    state bigint := once._hold_slot(slot);
BEGIN
    UPDATE once.slot_move AS m SET handed_to = node WHERE m.slot = slot AND m.epoch = epoch AND state = (epoch - 1) * 2;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: slot %s is no longer closed for this move', slot),
            DETAIL = format('epoch=%s', state / 2), HINT = 'Another pgonce rehome has taken over.';
    END IF;
    PERFORM setval(to_regclass('once.slot_' || slot || '_seq'), epoch * 2);
END $$;
