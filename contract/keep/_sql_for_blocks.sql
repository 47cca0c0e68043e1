-- SPDX-License-Identifier: PostgreSQL
-- once._sql_for_blocks(leaf, first, past, statement): a statement, ready to EXECUTE, for rows i of this table: {leaf} becomes the table,
-- {here} the condition that a row is in these blocks of its heap, {deletable} that of once._sql_deletable. The keeper reads tables in
-- this way, part by part, because no index finds stale or expired rows: such an index would prevent the HOT update of every completion.
-- Needs enable_seqscan off. Before PostgreSQL 14 there is no scan of a range of addresses: they are listed.
CREATE FUNCTION once._sql_for_blocks(leaf regclass, first bigint, past bigint, statement text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT replace(replace(replace(statement, '{leaf}', leaf::text), '{deletable}', once._sql_deletable()), '{here}',
        CASE WHEN current_setting('server_version_num')::integer >= 140000
             THEN format($sql$i.ctid >= '(%s,0)'::tid AND i.ctid < '(%s,0)'::tid$sql$, first, past)
             ELSE format($sql$i.ctid = ANY (ARRAY(SELECT format('(%%s,%%s)', b, o)::tid
                                                    FROM generate_series(%s, %s) AS b, generate_series(1, %s) AS o))$sql$,
                         first, past - 1, (current_setting('block_size')::integer - 24) / 28)
        END)
$$;
