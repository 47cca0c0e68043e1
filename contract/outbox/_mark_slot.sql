-- SPDX-License-Identifier: PostgreSQL
-- once._mark_slot(slot, server): sets the mark of a capture at what is committed now. To be called when the slot is there and
-- something was written in this transaction: then the mark lies behind the point where the slot began, and a slot that a
-- connector has only just made, and whose first snapshot it still reads, has not passed it.
CREATE FUNCTION once._mark_slot(slot text, server text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    -- The snapshot is older than the reading of the WAL: whatever it sees is written before.
    UPDATE once.capture AS c
       SET mark = pg_current_snapshot(), mark_lsn = pg_current_wal_insert_lsn(), server = server, broken = NULL, broken_since = NULL
     WHERE c.slot = slot COLLATE "C";
END $$;
