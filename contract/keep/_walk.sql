-- SPDX-License-Identifier: PostgreSQL
-- once._walk(parents, numbers, statements, newest, tenant, scope, words, since, until, take, after, patience): reads tables by blocks, at
-- most take rows, for about as long as patience; once._doubtful and once.find_part say which rows. parents are the tables; numbers[n] is
-- an expression for the place in the walk of a partition with the number {n} of parents[n]; statements[n] selects address (ctid), stored
-- and note from {leaf} AS i WHERE {here} in the order of the walk, LIMIT $2. $1 is the address of the last row that was looked at; $3 to $7
-- are tenant, scope, words, since and until. newest: from the end of each table to its beginning. Each row has its table and the cursor
-- of the position after it. A last row without an intent has the cursor for the next call, NULL if done, and the share of the blocks that
-- the walk has passed.
CREATE FUNCTION once._walk(parents regclass[], numbers text[], statements text[], newest boolean, of_tenant text, of_scope text,
    words text[], since timestamptz, until timestamptz, take integer, after text, patience interval)
RETURNS TABLE (source regclass, leaf regclass, stored once.intent, note text, next text, share double precision)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    deadline timestamptz := clock_timestamp() + patience;
    place bigint[] := once._parse_cursor(after);
    far bigint := CASE WHEN newest THEN 4294967295 ELSE 0 END;     -- where the walk enters a table
    stride bigint := CASE WHEN newest THEN least(8, once._stride()) ELSE once._stride() END;
    has_read boolean := false;
    leaves text := (SELECT string_agg(format($sql$SELECT c.oid::regclass AS name, %s AS nth, %s::bigint AS number
                                                    FROM pg_class AS c
                                                   WHERE c.oid IN (SELECT h.inhrelid FROM pg_inherits AS h WHERE h.inhparent = %s)
                                                     AND c.relname ~ '_d?[0-9]+$'$sql$,
                        u.nth, replace(u.number, '{n}', $sql$substring(c.relname FROM '[0-9]+$')::bigint$sql$), u.parent::oid),
                        ' UNION ALL ')
                      FROM unnest(parents, numbers) WITH ORDINALITY AS u (parent, number, nth));
    names regclass[];
    nths integer[];
    numbers_of bigint[];
    n integer := 0;
    nth integer;
    here regclass;
    size bigint;
    edge bigint;
    met record;
    count integer;
BEGIN
    IF after IS NULL THEN
        place[2] := far;
    END IF;
    LOOP
        -- The table that the cursor names, or the next one if that is gone. When all are read, there may be a new one in the archive.
        n := n + 1;
        IF n > coalesce(cardinality(names), 0) THEN
            EXECUTE format('SELECT array_agg(l.name ORDER BY l.number), array_agg(l.nth ORDER BY l.number),
                                   array_agg(l.number ORDER BY l.number) FROM (%s) AS l WHERE l.number >= $1', leaves)
               INTO names, nths, numbers_of USING place[1];
            EXIT WHEN names IS NULL;
            n := 1;
        END IF;
        here := names[n];
        nth := nths[n];
        IF numbers_of[n] > place[1] THEN
            place := ARRAY[numbers_of[n], far, 0];
        END IF;
        size := coalesce(once._blocks(here), 0);        -- 0: dropped since it was listed
        IF newest AND place[2] >= size THEN
            place := ARRAY[place[1], size, 0];
        END IF;
        IF (newest AND place[2] = 0 AND place[3] = 0) OR (NOT newest AND place[2] >= size) THEN
            place := ARRAY[place[1] + 1, far, 0];
            CONTINUE;
        END IF;
        n := n - 1;             -- the same table again, until it is read
        IF take <= 0 OR (has_read AND clock_timestamp() > deadline) THEN
            next := array_to_string(place, ':');
            EXIT;
        END IF;
        has_read := true;
        count := 0;
        IF newest THEN
            edge := greatest(place[2] - stride, 0);
        ELSE
            edge := place[2] - place[2] % stride + stride;
        END IF;
        FOR met IN EXECUTE once._sql_for_blocks(here, least(place[2], edge),
                                                greatest(place[2] + (place[3] > 0)::integer, edge),
                                                statements[nth])
                   USING format('(%s,%s)', place[2], place[3])::tid, take, of_tenant, of_scope, words, since, until LOOP
            count := count + 1;
            place := ARRAY[place[1]] || string_to_array(btrim(met.address::text, '()'), ',')::bigint[];
            source := parents[nth];
            leaf := here;
            stored := met.stored;
            note := met.note;
            next := array_to_string(place, ':');
            RETURN NEXT;
        END LOOP;
        take := take - count;
        next := NULL;
        IF take > 0 THEN
            place := ARRAY[place[1], edge, 0];
        END IF;
        stride := least(stride * 2, once._stride());
    END LOOP;
    leaf := CASE WHEN next IS NOT NULL THEN here END;
    share := 1;
    IF next IS NOT NULL THEN
        EXECUTE format('SELECT sum(CASE WHEN l.number < $1 THEN l.size WHEN l.number > $1 THEN 0 WHEN $3 THEN l.size - $2 ELSE $2 END)
                               / greatest(sum(l.size), 1)::double precision
                          FROM (SELECT k.number, once._blocks(k.name) AS size FROM (%s) AS k) AS l', leaves)
           INTO share USING place[1], place[2], newest;
    END IF;
    source := NULL;
    stored := NULL;
    note := NULL;
    RETURN NEXT;
END $$;
