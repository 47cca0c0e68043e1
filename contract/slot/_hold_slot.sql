-- SPDX-License-Identifier: PostgreSQL
-- once._hold_slot(slot): what closing and opening a slot have in common: holds its state until the transaction ends, and returns it
-- (once._slot_state). Another node relies on this transaction's commit, so the commit must reach the disk. Raises 22023 if there is no such
-- slot or the node is not divided; 55006 while another session holds the slot, or once.undivide runs; 25000 above READ COMMITTED, where a
-- snapshot from before the lock would not show that the slot was handed over.
CREATE FUNCTION once._hold_slot(slot integer) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '25000', MESSAGE = 'pgonce: slots close and open in READ COMMITTED only',
            HINT = 'SET default_transaction_isolation = ''read committed''';
    ELSIF once._slot_state(slot) IS NULL OR NOT once._is_guarded() THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: there is no slot %s on this node', coalesce(slot::text, 'NULL')),
            HINT = 'A divided node has the slots 0 to 63: CALL once.divide(...).';
    ELSIF NOT pg_try_advisory_xact_lock_shared(hashtextextended('pgonce slots', 20778)) OR NOT pg_try_advisory_xact_lock(20791, slot) THEN
        RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('pgonce: another session is closing or opening slot %s', slot),
            HINT = 'Let it end, then look at once.slots().';
    ELSIF NOT once._is_guarded() THEN       -- since once.undivide has ended
        RETURN once._hold_slot(NULL);
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
    RETURN once._slot_state(slot);
END $$;
