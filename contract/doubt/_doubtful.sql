-- SPDX-License-Identifier: PostgreSQL
-- once._doubtful(of_tenant, of_scope, of_error, since, until, take, after): the intents in doubt, at most take of them, reading for about
-- a tenth of a second; each with its table (once.intent or once.archive) and the cursor of the position after it. since and until select
-- intents that were first tried since, and in doubt before until: nothing of them happened outside that period. NULL: any. A last row
-- without an intent only has the cursor for the next call; NULL there means done. The archive comes last, so that a row that moves there
-- meanwhile is still found.
CREATE FUNCTION once._doubtful(of_tenant text, of_scope text, of_error text, since timestamptz, until timestamptz, take integer,
    after text) RETURNS TABLE (source regclass, stored once.intent, next text)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    place bigint[] := once._parse_cursor(after);
    stride bigint := once._stride();
    has_read boolean := false;
    leaf record;
    past bigint;
    met record;
BEGIN
    LOOP
        -- The table that the cursor names, or the next one if that is gone. Opened by name, which a day keeps until it is closed.
        SELECT l.* INTO leaf
          FROM (SELECT c.oid::regclass AS name, h.inhparent::regclass AS parent,
                       CASE h.inhparent WHEN 'once.archive'::regclass THEN 1000000000 ELSE 0 END
                       + substring(c.relname FROM '[0-9]+$')::bigint AS number
                  FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
                 WHERE h.inhparent IN ('once.intent'::regclass, 'once.archive'::regclass) AND c.relname ~ '_d?[0-9]+$') AS l
         WHERE l.number >= place[1] ORDER BY l.number LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF leaf.number > place[1] THEN
            place := ARRAY[leaf.number, 0, 0];
        END IF;
        IF place[2] >= once._blocks(leaf.name) THEN
            place := ARRAY[place[1] + 1, 0, 0];
            CONTINUE;
        END IF;
        IF take <= 0 OR (has_read AND clock_timestamp() > deadline) THEN
            next := array_to_string(place, ':');
            source := NULL;
            stored := NULL;
            RETURN NEXT;
            RETURN;
        END IF;
        has_read := true;
        past := place[2] - place[2] % stride + stride;
        FOR met IN EXECUTE once._sql_for_blocks(leaf.name, place[2], past, $sql$
                       SELECT i.ctid AS address, ROW(i.*)::once.intent AS stored FROM {leaf} AS i
                        WHERE {here} AND i.ctid > $1 AND i.state = 'in_doubt'
                          AND ($2 IS NULL OR i.tenant COLLATE "C" = $2) AND ($3 IS NULL OR i.scope COLLATE "C" = $3)
                          AND ($4 IS NULL OR i.error_code COLLATE "C" = $4)
                          AND ($5 IS NULL OR i.created_at >= $5) AND ($6 IS NULL OR i.updated_at < $6)
                        ORDER BY i.ctid LIMIT $7
                       $sql$)
                   USING format('(%s,%s)', place[2], place[3])::tid, of_tenant, of_scope, of_error, since, until, take LOOP
            take := take - 1;
            place := ARRAY[place[1]] || string_to_array(btrim(met.address::text, '()'), ',')::bigint[];
            source := leaf.parent;
            stored := met.stored;
            next := array_to_string(place, ':');
            RETURN NEXT;
        END LOOP;
        IF take > 0 THEN
            place := ARRAY[place[1], past, 0];
        END IF;
    END LOOP;
    source := NULL;
    stored := NULL;
    next := NULL;
    RETURN NEXT;
END $$;
