-- SPDX-License-Identifier: PostgreSQL
-- once._relay_sign(relay): to be called by whoever has just written a relay's row. written_by names
-- the transaction that wrote the row, and so does its xmin, until something copies it by rows:
-- pg_restore, COPY, logical replication. Then the two differ, and the snapshots are another
-- database's. What copies the files keeps both, and the transactions with them: pg_basebackup, a
-- standby, pg_upgrade, also VACUUM FULL. A row is written with the number of the transaction;
-- within a savepoint it gets another xmin, which is not known before, so it is written once more. 0
-- is no transaction: a row that was not ours stays so, whoever changes it.
CREATE FUNCTION once._relay_sign(relay text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    UPDATE once.relay AS r SET written_by = r.xmin
     WHERE r.relay = relay COLLATE "C" AND r.written_by NOT IN (r.xmin, '0');
END $$;
