-- SPDX-License-Identifier: PostgreSQL
-- once._range(first, past): the condition, as text, that a row of table i lies in these blocks of its heap. The keeper reads
-- tables so, piece by piece, because no index leads to what is stale or expired: one that did would cost every completion its
-- HOT update. Needs enable_seqscan off. Before PostgreSQL 14 there is no scan of a range of addresses: they are listed.
CREATE FUNCTION once._range(first bigint, past bigint) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN current_setting('server_version_num')::integer >= 140000
        THEN format('i.ctid >= ''(%s,0)''::tid AND i.ctid < ''(%s,0)''::tid', first, past)
        ELSE format('i.ctid = ANY (ARRAY(SELECT format(''(%%s,%%s)'', b, o)::tid FROM generate_series(%s, %s) AS b,'
                    ' generate_series(1, %s) AS o))', first, past - 1, (current_setting('block_size')::integer - 24) / 28)
    END
$$;
