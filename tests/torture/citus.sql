-- SPDX-License-Identifier: PostgreSQL
-- What a node of a cluster of Citus has besides schema.sql: transactions of the level SERIALIZABLE that read and write one table conflict
-- with each other where their memory is, and many notice it only in COMMIT, when Citus has come to the other node.
CREATE TABLE torture.conflict (at timestamptz NOT NULL DEFAULT now());
GRANT SELECT, INSERT ON torture.conflict TO once_app;

ALTER FUNCTION torture.advance(text, text, text, text, integer, text, integer) RENAME TO advance_without_conflict;

CREATE FUNCTION torture.advance(tenant text, scope text, key text, payload text, attempt integer, door text,
    fence integer DEFAULT NULL, OUT step integer, OUT body bytea) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    IF current_setting('transaction_isolation') = 'serializable' THEN
        PERFORM FROM torture.conflict LIMIT 1;
        INSERT INTO torture.conflict DEFAULT VALUES;
    END IF;
    SELECT made.step, made.body INTO step, body
      FROM torture.advance_without_conflict(tenant, scope, key, payload, attempt, door, fence) AS made;
END $$;
