-- SPDX-License-Identifier: PostgreSQL
-- once._delete_past(step, leaves): one part of a step that deletes rows: the due rows of these tables, by blocks, some hundred rows or a
-- tenth of a second, from where the last part stopped. highest: the highest fence among the deleted rows. After a complete pass it rests,
-- longer for larger tables, so as not to read them all day.
CREATE FUNCTION once._delete_past(step text, leaves text[], OUT done bigint, OUT more boolean, OUT highest integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    limits once.limits := once._limits();
    stride bigint := once._stride();
    place once.keeper_step;
    nth integer;
    gone record;
    worked boolean := false;
BEGIN
    done := 0;
    more := false;
    SELECT k.* INTO STRICT place FROM once.keeper_step AS k WHERE k.step = step COLLATE "C" FOR UPDATE;
    IF place.leaf IS NULL AND clock_timestamp() < place.ended_at
       + (SELECT sum(once._blocks(to_regclass('once.' || l))) FROM unnest(leaves) AS l) * interval '1 millisecond'
       AND clock_timestamp() >= place.ended_at THEN
        RETURN;
    END IF;
    nth := array_position(leaves, place.leaf::text);
    IF nth IS NULL THEN         -- a new pass, or the table has gone
        nth := 1;
        place.block := 0;
    END IF;
    LOOP
        IF nth > cardinality(leaves) THEN
            place.ended_at := clock_timestamp();
            place.block := 0;
            EXIT;
        ELSIF place.block >= coalesce(once._blocks(to_regclass('once.' || leaves[nth])), 0) THEN
            nth := nth + 1;
            place.block := 0;
            CONTINUE;
        END IF;
        IF worked AND (clock_timestamp() > deadline OR done >= 500) THEN
            more := true;
            EXIT;
        END IF;
        worked := true;
        IF leaves[nth] = 'decision' THEN
            gone := once._delete_decisions(place.block, place.block + stride, limits);
        ELSE
            gone := once._delete_intents(to_regclass('once.' || leaves[nth]), place.block, place.block + stride, limits);
        END IF;
        done := done + gone.number;
        highest := greatest(highest, gone.highest);
        IF gone.due < 500 OR gone.number = 0 THEN     -- else there may be more of them in these blocks
            place.block := place.block + stride;
        END IF;
    END LOOP;
    UPDATE once.keeper_step AS k
       SET leaf = CASE WHEN more THEN leaves[nth] END, block = place.block, ended_at = place.ended_at
     WHERE k.step = step COLLATE "C";
END $$;
