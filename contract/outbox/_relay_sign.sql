-- SPDX-License-Identifier: PostgreSQL
-- once._relay_sign(relay): call it right after you have written a relay's row. written_by names the transaction that wrote the row, and
-- so does its xmin, until the row is copied by pg_restore, COPY or logical replication. Then the two differ, and the snapshots are
-- another database's. A copy of the files keeps both, and the transactions with them: pg_basebackup, a standby, pg_upgrade, also VACUUM
-- FULL. A row is written with the number of the transaction; within a savepoint it gets another xmin, which is not known before, so it is
-- written again. 0 is not a transaction: a foreign row stays foreign, even if it is changed here.
CREATE FUNCTION once._relay_sign(relay text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    UPDATE once.relay AS r SET written_by = r.xmin
     WHERE r.relay = relay COLLATE "C" AND r.written_by NOT IN (r.xmin, '0');
END $$;
