-- SPDX-License-Identifier: PostgreSQL
-- once._mark_slot(slot, server): sets the mark of a capture at everything committed now. Call it once the slot exists and this
-- transaction has written something: then the mark lies after the point where the slot began, and a slot that a connector has just
-- created, and whose first snapshot it is still reading, has not passed it.
CREATE FUNCTION once._mark_slot(slot text, server text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    -- The snapshot is older than this reading of the WAL: everything that it sees was written before.
    UPDATE once.capture AS c
       SET mark = pg_current_snapshot(), mark_lsn = pg_current_wal_insert_lsn(), server = server, broken = NULL, broken_since = NULL
     WHERE c.slot = slot COLLATE "C";
END $$;
