-- SPDX-License-Identifier: PostgreSQL
-- once._move_forget(slots, epochs, leaf, block): deletes the memory of slots that another node serves, or has served since, in a step of at
-- most a tenth of a second. epochs: those of that node. Begins with leaf NULL; leaf and block say where the next step begins: NULL: at the
-- end. Raises 55000 if a slot is open here or has a greater epoch here: then this memory is the true one.
CREATE FUNCTION once._move_forget(slots integer[], epochs bigint[], INOUT leaf text, INOUT block bigint, OUT deleted bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    until timestamptz := clock_timestamp() + interval '100 milliseconds';
    leaves text[] := ARRAY(SELECT c.relname::text FROM pg_class AS c
                            WHERE c.oid IN (SELECT h.inhrelid FROM pg_inherits AS h
                                             WHERE h.inhparent IN ('once.intent'::regclass, 'once.archive'::regclass))
                            ORDER BY c.relname) || ARRAY['decision', 'delayed_event', 'parked_message', 'consumer_position'];
    state bigint;
    gone bigint;
BEGIN
    deleted := 0;
    FOR n IN 1 .. cardinality(slots) LOOP
        state := once._hold_slot(slots[n]);
        IF state % 2 = 1 OR (state / 2 <= epochs[n]) IS NOT TRUE THEN
            RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: the memory of slot %s is in use on this node', slots[n]),
                DETAIL = format('it is %s here with epoch %s', CASE WHEN state % 2 = 1 THEN 'open' ELSE 'closed' END, state / 2);
        END IF;
    END LOOP;
    IF leaf IS NULL THEN
        leaf := leaves[1];
        block := 0;
    END IF;
    LOOP
        IF (block < once._blocks(to_regclass('once.' || leaf))) IS NOT TRUE THEN
            leaf := (SELECT l FROM unnest(leaves) WITH ORDINALITY AS u (l, n)
                      WHERE u.n > coalesce(array_position(leaves, leaf), 0) ORDER BY u.n LIMIT 1);
            block := CASE WHEN leaf IS NOT NULL THEN 0 END;
            EXIT WHEN leaf IS NULL;
            CONTINUE;
        END IF;
        EXECUTE once._sql_for_blocks(to_regclass('once.' || leaf), block, block + once._stride(),
            'DELETE FROM {leaf} AS i WHERE {here} AND once.slot_of(i.tenant) = ANY ($1)') USING slots;
        GET DIAGNOSTICS gone = ROW_COUNT;
        deleted := deleted + gone;
        block := block + once._stride();
        EXIT WHEN clock_timestamp() > until;
    END LOOP;
END $$;
