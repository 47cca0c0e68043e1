-- SPDX-License-Identifier: PostgreSQL
-- once._anchor(): the trigger of an anchored Citus node (once.anchor), after each statement that writes the memory. Citus does not see
-- writes to local tables. If a transaction has changed one other node, Citus commits that node first, alone; if the local commit then
-- fails, the effect stays without its memory. A change of a local shard, even of no row, makes it commit in two phases, with the memory
-- in the deciding transaction. As installed, the function refuses; once.anchor replaces it by a function that knows this node's shard.
CREATE FUNCTION once._anchor() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._refuse('P4097', NULL, NULL, NULL, NULL, 'it has lost its anchor', 'As the owner of the contract: SELECT once.anchor().');
    RETURN NULL;
END $$;
