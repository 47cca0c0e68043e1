-- SPDX-License-Identifier: PostgreSQL
-- once._outlive(leaf, first, past, moving, limits): works on these blocks of the table of a closed day. Stale attempts become
-- in doubt, since nobody may take them over any more. With moving, what outlives its day goes to the archive: everything in
-- doubt, and outcomes that are not past (once._past). A row goes in one statement, so that whoever looks finds it in exactly
-- one place, and is never waited for. held says what is left in these blocks and why; NULL: nothing.
CREATE FUNCTION once._outlive(leaf regclass, first bigint, past bigint, moving boolean, limits record, OUT doubted bigint,
    OUT moved bigint, OUT held text)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    blocks text := once._range(first, past);
    stale record;
    outlives text := format('(i.state = ''in_doubt'' OR (i.state IN (''succeeded'', ''failed_final'') AND NOT %s))',
        once._past());
    something boolean;
BEGIN
    doubted := 0;
    moved := 0;
    -- One reading, without a lock, for the many blocks in which there is nothing to do.
    EXECUTE format('SELECT EXISTS (SELECT FROM %s AS i WHERE %s AND (i.state = ''processing'' OR (%s)))', leaf, blocks,
                   CASE WHEN moving THEN outlives ELSE 'false' END)
        INTO something USING limits.now, limits.retention, limits.needed, limits.skew, limits.longest, limits.consumers;
    IF NOT something THEN
        RETURN;
    END IF;
    FOR stale IN EXECUTE format('SELECT i.ctid AS address, i.tenant, i.scope, i.key, i.fence FROM %s AS i WHERE %s
                                 AND i.state = ''processing'' AND i.lease_until <= $1 FOR UPDATE SKIP LOCKED', leaf, blocks)
                 USING limits.now LOOP
        EXECUTE format('UPDATE %s AS i SET state = ''in_doubt'', updated_at = $1, lease_until = NULL,
                        error_code = ''stale'', error_message = ''its day was retired while it was stale''
                        WHERE i.ctid = $2', leaf) USING limits.now, stale.address;
        PERFORM once._record(stale.tenant, stale.scope, stale.key, stale.fence, 'processing', 'in_doubt',
            'its day was retired while it was stale', 'retire');
        doubted := doubted + 1;
    END LOOP;
    EXECUTE format('SELECT format(''an attempt holds its lease until %%s: tenant=%%L scope=%%L key=%%L'', i.lease_until,
                    i.tenant, i.scope, i.key) FROM %s AS i WHERE %s AND i.state = ''processing'' LIMIT 1', leaf, blocks)
        INTO held;
    IF moving THEN
        EXECUTE format('WITH free AS MATERIALIZED (SELECT i.ctid AS address FROM %1$s AS i WHERE %2$s AND %3$s
                                                   FOR UPDATE SKIP LOCKED),
                        gone AS (DELETE FROM %1$s AS i WHERE i.ctid = ANY (ARRAY(SELECT f.address FROM free AS f))
                                 RETURNING i.*)
                        INSERT INTO once.archive SELECT g.* FROM gone AS g', leaf, blocks, outlives)
            USING limits.now, limits.retention, limits.needed, limits.skew, limits.longest, limits.consumers;
        GET DIAGNOSTICS moved = ROW_COUNT;
        IF held IS NULL THEN
            EXECUTE format('SELECT format(''a row is just being changed: tenant=%%L scope=%%L key=%%L'', i.tenant, i.scope,
                            i.key) FROM %s AS i WHERE %s AND %s LIMIT 1', leaf, blocks, outlives)
                INTO held USING limits.now, limits.retention, limits.needed, limits.skew, limits.longest, limits.consumers;
        END IF;
    END IF;
END $$;
