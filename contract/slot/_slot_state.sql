-- SPDX-License-Identifier: PostgreSQL
-- once._slot_state(slot): twice the slot's epoch, plus one if it is open here; NULL if the node is not divided or has no such slot. It is
-- the present value, independent of the snapshot.
CREATE FUNCTION once._slot_state(slot integer) RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN slot BETWEEN 0 AND 63 THEN pg_sequence_last_value(to_regclass('once.slot_' || slot::text || '_seq')) END
$$;
