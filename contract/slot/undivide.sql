-- SPDX-License-Identifier: PostgreSQL
-- once.undivide(): makes a divided node an ordinary installation again, which serves every tenant. Raises 55000 unless every slot is open
-- here: other nodes may remember keys of a closed slot, and their effects would happen again. Returns when all transactions that began with
-- the guard have ended. For the owner of the contract, outside a transaction block. Does nothing if the node is not divided.
CREATE PROCEDURE once.undivide() LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._undivide(false);
    COMMIT;
    PERFORM once._wait_for_older();
    PERFORM once._undivide(true);
END $$;
