-- SPDX-License-Identifier: PostgreSQL
-- once._work_off(closing, leaf, moving): one part of work on a closed day, from where the last one stopped: about a tenth of a second of
-- once._retire_blocks. through: the end of the table is reached; held: what it stopped at.
CREATE FUNCTION once._work_off(closing once.closing, leaf regclass, moving boolean, OUT done bigint, OUT through boolean, OUT held text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    limits once.limits := once._limits();
    block bigint := closing.block;
    stride bigint := once._stride();
    piece record;
    moved bigint := 0;
BEGIN
    done := 0;
    IF moving THEN
        PERFORM once._archive_month(closing.day);
    END IF;
    -- At least once, even on a loaded machine, so that it makes progress.
    WHILE block < once._blocks(leaf) LOOP
        piece := once._retire_blocks(leaf, block, block + stride, moving, limits);
        done := done + piece.doubted + piece.moved;
        moved := moved + piece.moved;
        held := piece.held;
        EXIT WHEN held IS NOT NULL;
        block := block + stride;
        EXIT WHEN clock_timestamp() > deadline;
    END LOOP;
    through := held IS NULL AND block >= once._blocks(leaf);
    UPDATE once.closing AS c
       SET block = block, moved = c.moved + moved, held = held,
           held_since = CASE WHEN held IS NOT NULL THEN coalesce(c.held_since, clock_timestamp()) END
     WHERE c.day = closing.day;
END $$;
