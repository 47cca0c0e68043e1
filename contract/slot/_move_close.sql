-- SPDX-License-Identifier: PostgreSQL
-- once._move_close(slot, wait): closes an open slot to move it (once_job.close_slot), and leaves the row that tells the other node that it
-- has everything. Returns the epoch with which it opens there. NULL: transactions are still inside, and it is open as before. Raises 55000
-- if it is not open here.
CREATE FUNCTION once._move_close(slot integer, wait interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    epoch bigint := once._hold_slot(slot) / 2 + 1;
BEGIN
    IF once._slot_state(slot) % 2 = 0 THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: slot %s is not open on this node', slot),
            DETAIL = format('epoch=%s', epoch - 1);
    ELSIF NOT once_job.close_slot(slot, wait) THEN
        RETURN NULL;
    END IF;
    INSERT INTO once.slot_move (slot, epoch, fence_floor) VALUES (slot, epoch, once._first_fence() - 1);
    RETURN epoch;
END $$;
