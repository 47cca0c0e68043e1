-- SPDX-License-Identifier: PostgreSQL
-- once._doubtful(of_tenant, of_scope, of_error, since, until, take, after, patience): the intents in doubt, at most take of them, reading
-- for about as long as patience; each with its table (once.intent or once.archive) and the cursor of the position after it. since and
-- until select intents that were first tried since, and in doubt before until: nothing of them happened outside that period. NULL: any. A
-- last row without an intent only has the cursor for the next call, NULL if done, and the share of the tables that was read. The archive
-- comes last, so that a row that moves there meanwhile is still found.
CREATE FUNCTION once._doubtful(of_tenant text, of_scope text, of_error text, since timestamptz, until timestamptz, take integer,
    after text, patience interval DEFAULT '100 milliseconds')
RETURNS TABLE (source regclass, stored once.intent, next text, share double precision) LANGUAGE plpgsql AS $$
DECLARE
    statement text := $sql$
        SELECT i.ctid AS address, ROW(i.*)::once.intent AS stored, NULL::text AS note FROM {leaf} AS i
         WHERE {here} AND i.ctid > $1 AND i.state = 'in_doubt'
           AND ($3 IS NULL OR i.tenant COLLATE "C" = $3) AND ($4 IS NULL OR i.scope COLLATE "C" = $4)
           AND (($5)[1] IS NULL OR i.error_code COLLATE "C" = ($5)[1])
           AND ($6 IS NULL OR i.created_at >= $6) AND ($7 IS NULL OR i.updated_at < $7)
         ORDER BY i.ctid LIMIT $2
        $sql$;
BEGIN
    RETURN QUERY
    SELECT w.source, w.stored, w.next, w.share
      FROM once._walk(ARRAY['once.intent', 'once.archive']::regclass[], ARRAY['{n}', '1000000000 + {n}'], ARRAY[statement, statement],
                      false, of_tenant, of_scope, ARRAY[of_error], since, until, take, after, patience) AS w;
END $$;
