-- SPDX-License-Identifier: PostgreSQL
-- once._move_back(slot): opens a slot again that has closed to move and was not handed over. Returns its epoch; NULL: it was handed over,
-- and only the other node may open it.
CREATE FUNCTION once._move_back(slot integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    state bigint := once._hold_slot(slot);
BEGIN
    IF state % 2 = 0 AND once._handed_to(slot) IS NOT NULL THEN
        RETURN NULL;
    ELSIF state % 2 = 0 THEN
        PERFORM once_job.open_slot(slot, state / 2 + 1);
    END IF;
    RETURN once._slot_state(slot) / 2;
END $$;
