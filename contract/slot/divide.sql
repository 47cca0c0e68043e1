-- SPDX-License-Identifier: PostgreSQL
-- once.divide(open): makes this database a node that shares the tenants with others. Each of the 64 slots gets a state, and every call
-- that may write checks first that its tenant's slot is open here; otherwise it raises P4097. open: true for the first node, which has all
-- slots open; false for a node that joins others. Returns when all transactions that began without the guard have ended, prepared ones
-- included; a NOTICE names them once a second. If it was interrupted while it waited, call it again: a divided node keeps its slots
-- unchanged. For the owner of the contract, outside a transaction block. Raises 22023 if open is missing, 55000 if some of the sequences
-- are missing. once.undivide reverts it.
--
-- Why it is written so: it is not SECURITY DEFINER and has no settings, since such a procedure could not commit.
CREATE PROCEDURE once.divide(open boolean DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._divide(open);
    COMMIT;
    PERFORM once._wait_for_older();
END $$;
