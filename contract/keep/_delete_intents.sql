-- SPDX-License-Identifier: PostgreSQL
-- once._delete_intents(leaf, first, past, limits): deletes up to 500 finished intents in these blocks that are past their retention, and
-- expired ones that had no effect. Each under its advisory lock, and none that another session is changing, so that no attempt is
-- disturbed. Intents that are processing or in doubt stay. due: how many there were.
CREATE FUNCTION once._delete_intents(leaf regclass, first bigint, past bigint, limits once.limits, OUT number bigint,
    OUT highest integer, OUT due bigint) LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
BEGIN
    EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
        WITH due AS MATERIALIZED (
            SELECT i.ctid AS address, i.tenant, i.scope, i.key FROM {leaf} AS i
             WHERE {here} AND i.state IN ('succeeded', 'failed_final', 'failed_retryable') AND {deletable} LIMIT 500
        ), held AS MATERIALIZED (
            SELECT d.address FROM due AS d WHERE pg_try_advisory_xact_lock(once._lock_id(d.tenant, d.scope, d.key))
        ), free AS MATERIALIZED (
            SELECT i.ctid AS address FROM {leaf} AS i
             WHERE i.ctid = ANY (ARRAY(SELECT h.address FROM held AS h))
               AND i.state IN ('succeeded', 'failed_final', 'failed_retryable') AND {deletable} FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM {leaf} AS i WHERE i.ctid = ANY (ARRAY(SELECT f.address FROM free AS f)) RETURNING i.fence
        )
        SELECT count(*), max(g.fence), (SELECT count(*) FROM due) FROM gone AS g
        $sql$) INTO number, highest, due USING limits;
END $$;
