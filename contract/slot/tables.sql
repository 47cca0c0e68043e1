-- SPDX-License-Identifier: PostgreSQL
-- The moves of slots to other nodes (pgonce rehome).

-- One row for each time that a slot has closed to move. It is replicated to the other node after everything that the slot's transactions
-- have written: if the row has arrived there, so has the slot's whole memory.
CREATE TABLE once.slot_move (
    slot        integer NOT NULL,
    epoch       bigint NOT NULL,                                -- with which the slot opens at the other node
    fence_floor integer NOT NULL,                               -- of this node: see once._first_fence
    closed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    handed_to   text,                                           -- the node that may open it; NULL: none, and it may open here again
    PRIMARY KEY (slot, epoch)
);
