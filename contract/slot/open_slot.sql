-- SPDX-License-Identifier: PostgreSQL
-- once_job.open_slot(slot, epoch): opens a slot on this node, for pgonce rehome. epoch: greater than any epoch that the slot has had on any
-- node. It takes effect at once, and a rollback does not undo it, since the state is a sequence. Raises 22023 if there is no such slot,
-- the node is not divided, or the epoch is not greater than the present one here; 55000 if the slot is already open, or if this node has
-- handed it over and its memory has not come back; 55006 while another session closes or opens it.
CREATE FUNCTION once_job.open_slot(slot integer, epoch bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    state bigint := once._hold_slot(slot);
BEGIN
    IF state % 2 = 1 THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: slot %s is open here', slot),
            DETAIL = format('epoch=%s', state / 2);
    ELSIF (epoch BETWEEN state / 2 + 1 AND 4611686018427387903) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('pgonce: slot %s cannot open with epoch %s', slot, coalesce(epoch::text, 'NULL')),
            DETAIL = format('its epoch here is %s', state / 2),
            HINT = 'Each opening needs a greater epoch than the slot has had on any node.';
    ELSIF once._handed_to(slot) IS NOT NULL
          AND NOT EXISTS (SELECT FROM once.slot_move AS m WHERE m.slot = open_slot.slot AND m.epoch = open_slot.epoch) THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: slot %s was handed over to %s', slot, once._handed_to(slot)),
            DETAIL = format('epoch=%s', state / 2),
            HINT = 'Run pgonce rehome again, with the same --from and --to. Only if that node is lost for good, and what it has done '
                'since with it: set handed_to to NULL in once.slot_move first.';
    END IF;
    PERFORM setval(to_regclass('once.slot_' || slot || '_seq'), epoch * 2 + 1);
END $$;
