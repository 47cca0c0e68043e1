-- SPDX-License-Identifier: PostgreSQL
-- once._keep_closed(phase): the steps 'doubt', 'move' and 'drop' read the tables of closed days in the same way, and differ in what they
-- then do. A day that is held up does not stop the next one. If a table is gone, another session has retired the day.
CREATE FUNCTION once._keep_closed(phase text) RETURNS once.kept LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    closing once.closing;
    leaf regclass;
    piece record;
    again boolean;
    why text := CASE WHEN phase <> 'doubt' THEN once._deletion_held() END;
BEGIN
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    FOR closing IN SELECT c.* FROM once.closing AS c WHERE c.phase = phase ORDER BY c.day FOR UPDATE SKIP LOCKED LOOP
        leaf := to_regclass('once.intent_closed_d' || closing.day);
        IF leaf IS NULL THEN
            DELETE FROM once.closing AS c WHERE c.day = closing.day;
            RETURN ROW(0, true, NULL, format('day %s is gone already', closing.day))::once.kept;
        ELSIF phase = 'drop' AND EXISTS (SELECT FROM pg_inherits AS h WHERE h.inhrelid = leaf) THEN
            PERFORM once._next_phase(closing.day, 'detach');
            RETURN ROW(0, true, NULL, NULL)::once.kept;
        END IF;
        SELECT w.* INTO piece FROM once._work_off(closing, leaf, phase <> 'doubt') AS w;
        IF piece.through THEN
            -- A report stored meanwhile may have moved a row to a block that was already read: only a pass that moves nothing is the
            -- last.
            SELECT c.moved > 0 INTO again FROM once.closing AS c WHERE c.day = closing.day;
            PERFORM once._next_phase(closing.day, CASE WHEN again THEN phase WHEN phase = 'doubt' THEN 'move'
                                                       WHEN phase = 'move' THEN 'detach' ELSE 'drop' END);
            IF phase = 'drop' AND NOT again THEN
                PERFORM set_config('lock_timeout', '100ms', true);
                PERFORM once._execute_ddl(format('DROP TABLE %s', leaf));
                DELETE FROM once.closing AS c WHERE c.day = closing.day;
                RETURN ROW(1, true, NULL, format('day %s is dropped', closing.day))::once.kept;
            END IF;
        END IF;
        IF piece.held IS NULL OR piece.done > 0 THEN
            RETURN ROW(piece.done, true, NULL, format('day %s: %s', closing.day, CASE WHEN piece.through THEN 'through'
                ELSE format('%s rows', piece.done) END))::once.kept;
        END IF;
        why := concat_ws('; ', why, format('day %s waits: %s', closing.day, piece.held));
    END LOOP;
    RETURN ROW(0, false, NULL, why)::once.kept;
END $$;
