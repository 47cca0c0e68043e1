-- SPDX-License-Identifier: PostgreSQL
-- once._move_open(slot, epoch): opens a slot that the other node has handed over with this epoch. Fences go on above those that were
-- deleted there. Does nothing if it is open with this epoch. Raises 55000 if its memory has not arrived here.
CREATE FUNCTION once._move_open(slot integer, epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    fence_floor integer := (SELECT m.fence_floor FROM once.slot_move AS m WHERE m.slot = slot AND m.epoch = epoch);
BEGIN
    IF fence_floor IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: slot %s was handed over to another node', slot),
            DETAIL = format('its memory of epoch %s has not arrived here', epoch), HINT = 'pgonce rehome --to that node.';
    ELSIF once._slot_state(slot) = epoch * 2 + 1 THEN
        RETURN;
    END IF;
    INSERT INTO once.keeper_step (step) VALUES ('purge') ON CONFLICT ON CONSTRAINT keeper_step_pkey DO NOTHING;
    PERFORM FROM once.keeper_step AS k WHERE k.step = 'purge' FOR UPDATE;       -- once._keep_purge, which raises the floor, too
    IF fence_floor >= once._first_fence() THEN
        PERFORM setval('once.fence_floor_seq', fence_floor);
    END IF;
    PERFORM once_job.open_slot(slot, epoch);
END $$;
