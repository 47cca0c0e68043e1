-- SPDX-License-Identifier: PostgreSQL
-- once._retire_blocks(leaf, first, past, moving, limits): works on these blocks of the table of a closed day. Stale attempts become in
-- doubt, since no other attempt may take over. With moving, rows that outlive the day move to the archive: everything in doubt, and
-- outcomes that are not past their retention (once._sql_deletable). A row moves in one statement, so that every session finds it in
-- exactly one place, and never waits for it. held: the rows left in these blocks and why; NULL: none.
CREATE FUNCTION once._retire_blocks(leaf regclass, first bigint, past bigint, moving boolean, limits once.limits, OUT doubted bigint,
    OUT moved bigint, OUT held text) LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    outlives CONSTANT text := $sql$(i.state = 'in_doubt' OR (i.state IN ('succeeded', 'failed_final') AND NOT {deletable}))$sql$;
    something boolean;
    stale record;
BEGIN
    doubted := 0;
    moved := 0;
    -- One read without a lock, for the many blocks in which there is nothing to do.
    EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
        SELECT EXISTS (SELECT FROM {leaf} AS i WHERE {here} AND (i.state = 'processing' OR ($2 AND $sql$ || outlives || $sql$)))
        $sql$) INTO something USING limits, moving;
    IF NOT something THEN
        RETURN;
    END IF;
    FOR stale IN EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
                     SELECT i.ctid AS address, i.tenant, i.scope, i.key, i.fence FROM {leaf} AS i
                      WHERE {here} AND i.state = 'processing' AND i.lease_until <= $1 FOR UPDATE SKIP LOCKED
                     $sql$) USING limits.now LOOP
        EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
            UPDATE {leaf} AS i SET state = 'in_doubt', updated_at = $1, lease_until = NULL, error_code = 'stale',
                                   error_message = 'its day was retired while it was stale'
             WHERE i.ctid = $2
            $sql$) USING limits.now, stale.address;
        PERFORM once._record(stale.tenant, stale.scope, stale.key, stale.fence, 'processing', 'in_doubt',
            'its day was retired while it was stale', 'retire');
        doubted := doubted + 1;
    END LOOP;
    EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
        SELECT format('an attempt holds its lease until %s: tenant=%L scope=%L key=%L', i.lease_until, i.tenant, i.scope, i.key)
          FROM {leaf} AS i WHERE {here} AND i.state = 'processing' LIMIT 1
        $sql$) INTO held;
    IF NOT moving THEN
        RETURN;
    END IF;
    EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
        WITH free AS MATERIALIZED (
            SELECT i.ctid AS address FROM {leaf} AS i WHERE {here} AND $sql$ || outlives || $sql$ FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM {leaf} AS i WHERE i.ctid = ANY (ARRAY(SELECT f.address FROM free AS f)) RETURNING i.*
        )
        INSERT INTO once.archive SELECT g.* FROM gone AS g
        $sql$) USING limits;
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF held IS NULL THEN
        EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
            SELECT format('a row is being changed: tenant=%L scope=%L key=%L', i.tenant, i.scope, i.key)
              FROM {leaf} AS i WHERE {here} AND $sql$ || outlives || $sql$ LIMIT 1
            $sql$) INTO held USING limits;
    END IF;
END $$;
