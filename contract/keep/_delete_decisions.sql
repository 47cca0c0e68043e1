-- SPDX-License-Identifier: PostgreSQL
-- once._delete_decisions(first, past, limits): deletes up to 500 entries of once.decision in these blocks that are past their retention,
-- but none of an intent that is still in doubt. Returns the same as once._delete_intents; a decision has no fence to keep.
CREATE FUNCTION once._delete_decisions(first bigint, past bigint, limits once.limits, OUT number bigint, OUT highest integer,
    OUT due bigint) LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
BEGIN
    EXECUTE once._sql_for_blocks('once.decision', first, past, $sql$
        WITH due AS MATERIALIZED (
            SELECT i.ctid AS address FROM {leaf} AS i
             WHERE {here} AND i.decided_at < ($1).now - ($1).decision_retention
               AND NOT EXISTS (SELECT FROM once.intent AS o WHERE o.tenant = i.tenant AND o.scope = i.scope AND o.key = i.key
                                                              AND o.bucket = once._bucket(i.key) AND o.state = 'in_doubt')
               AND NOT EXISTS (SELECT FROM once.archive AS o WHERE o.tenant = i.tenant AND o.scope = i.scope AND o.key = i.key
                                                               AND o.bucket = once._bucket(i.key) AND o.state = 'in_doubt')
             LIMIT 500
        ), free AS MATERIALIZED (
            SELECT i.ctid AS address FROM {leaf} AS i WHERE i.ctid = ANY (ARRAY(SELECT d.address FROM due AS d))
               FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM {leaf} AS i WHERE i.ctid = ANY (ARRAY(SELECT f.address FROM free AS f)) RETURNING i.fence
        )
        SELECT count(*), NULL::integer, (SELECT count(*) FROM due) FROM gone AS g
        $sql$) INTO number, highest, due USING limits;
END $$;
