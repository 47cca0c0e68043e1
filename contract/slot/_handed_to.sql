-- SPDX-License-Identifier: PostgreSQL
-- once._handed_to(slot): the node to which this one has handed the slot over with its present epoch; NULL: none.
CREATE FUNCTION once._handed_to(slot integer) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    RETURN (SELECT m.handed_to FROM once.slot_move AS m WHERE m.slot = slot AND m.epoch = once._slot_state(slot) / 2);
END $$;
