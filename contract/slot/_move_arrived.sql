-- SPDX-License-Identifier: PostgreSQL
-- once._move_arrived(slot, epoch, wait): whether the other node's row of this move has arrived within this time, and with it everything
-- that the slot's transactions have written there.
CREATE FUNCTION once._move_arrived(slot integer, epoch bigint, wait interval) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    until timestamptz := clock_timestamp() + wait;
BEGIN
    WHILE NOT EXISTS (SELECT FROM once.slot_move AS m WHERE m.slot = slot AND m.epoch = epoch) LOOP
        IF clock_timestamp() > until THEN
            RETURN false;
        END IF;
        PERFORM pg_sleep(0.001);
    END LOOP;
    RETURN true;
END $$;
