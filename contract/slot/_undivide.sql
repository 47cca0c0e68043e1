-- SPDX-License-Identifier: PostgreSQL
-- once._undivide(finally): the two parts of once.undivide. The first removes the guard; the second drops the sequences and the record of
-- moves, when no transaction reads them any more. In between no slot can close: once_job.close_slot refuses a node without the guard.
CREATE FUNCTION once._undivide(finally boolean) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    closed integer[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce slots', 20778));
    SELECT array_agg(s.slot ORDER BY s.slot) INTO closed FROM once.slots() AS s WHERE s.open IS NOT TRUE;
    IF closed IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: this node does not serve every tenant',
            DETAIL = format('closed slots: %s', array_to_string(closed, ' ', '?')), HINT = 'Move them here first: pgonce rehome.';
    ELSIF NOT finally THEN
        PERFORM once._guard(false);
    ELSIF once._is_divided() AND NOT once._is_guarded() THEN
        FOR slot IN 0 .. 63 LOOP
            PERFORM once._execute_ddl(format('DROP SEQUENCE once.slot_%s_seq', slot));
        END LOOP;
        DELETE FROM once.slot_move;         -- its epochs begin anew if the node is divided again
    END IF;
END $$;
