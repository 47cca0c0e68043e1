-- SPDX-License-Identifier: PostgreSQL
-- once._find_part(...): the work of once.find_part. A cursor is key:scope:tenant (in hexadecimal digits) while it looks up the key. Then
-- it is lowest/table:block:row: that of once._walk, after the lowest day that was read while it was open. Archived rows of that day or a
-- later one were listed then, and are left out. The tables of closed days come after those of open days and just before the archive,
-- where the keeper moves their rows: so a day that is closed meanwhile is not lost. If the search stands in that day, it begins there
-- again.
CREATE FUNCTION once._find_part(q text, of_tenant text, of_scope text, of_state text, since timestamptz, until timestamptz, take integer,
    after text) RETURNS TABLE (stored once.intent, archived boolean, found_by text, next text, share double precision,
    reached timestamptz, understood text[])
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    wanted text := nullif(q, '');
    remaining integer := least(greatest(coalesce(take, 50), 0), 500);
    event uuid := CASE WHEN wanted COLLATE "C" ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN wanted::uuid END;
    trace text := CASE WHEN wanted COLLATE "C" ~ '^[0-9a-f]{32}$' THEN wanted ELSE substr(once._trace(wanted), 4, 32) END;
    place text[] := CASE WHEN after COLLATE "C" ~ '^key:([0-9a-f]{2})*:([0-9a-f]{2})*$' THEN string_to_array(after, ':') END;
    -- Why a row matches. A row with this key is left out: it was looked up.
    reason text := $sql$CASE WHEN ($5)[1] IS NULL THEN '' WHEN i.key COLLATE "C" = ($5)[1] THEN NULL
        WHEN ($5)[2] IS NOT NULL AND substr(i.traceparent, 4, 32) COLLATE "C" = ($5)[2] THEN 'trace'
        WHEN starts_with(i.key COLLATE "C", ($5)[1]) THEN 'key'
        WHEN i.result_id COLLATE "C" = ($5)[1] OR (i.result_type || ':' || i.result_id) COLLATE "C" = ($5)[1] THEN 'result'
        WHEN i.owner COLLATE "C" = ($5)[1] THEN 'owner' WHEN i.tenant COLLATE "C" = ($5)[1] THEN 'tenant'
        WHEN i.error_code COLLATE "C" = ($5)[1] OR strpos(lower(i.error_message COLLATE "default"), ($5)[3]) > 0 THEN 'error' END$sql$;
    intents text;
    events text := $sql$
        SELECT i.ctid AS address, ($5)[4] AS note,
               (SELECT e FROM jsonb_populate_record(NULL::once.intent, jsonb_build_object('tenant', i.tenant, 'scope', i.scope,
                   'key', i.key, 'bucket', i.day, 'owner', i.id)) AS e) AS stored
          FROM {leaf} AS i
         WHERE {here} AND i.ctid < $1 AND i.key IS NOT NULL
           AND ($3 IS NULL OR i.tenant COLLATE "C" = $3) AND ($4 IS NULL OR i.scope COLLATE "C" = $4)
           AND (i.event_id = ($5)[4]::uuid OR substr(i.traceparent, 4, 32) COLLATE "C" = ($5)[2])
         ORDER BY i.ctid DESC LIMIT $2
        $sql$;
    lowest integer := coalesce(substring(after FROM '^([0-9]{1,6})/')::integer, 999999);
    tables integer := CASE WHEN event IS NULL AND trace IS NULL THEN 2 ELSE 3 END;       -- the outbox has its events
    open_days integer[];
    met record;
    one record;
BEGIN
    PERFORM once._authorise(of_tenant);     -- NULL, all tenants: for roles that are not bound
    IF of_state <> ALL (enum_range(NULL::once.state)::text[]) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: unknown state: %s', quote_literal(left(of_state, 80))),
            HINT = 'state is one of ' || array_to_string(enum_range(NULL::once.state), ', ') || '; NULL for all.';
    END IF;
    IF wanted IS NOT NULL THEN
        understood := array_remove(ARRAY['key', CASE WHEN event IS NOT NULL THEN 'event' END,
            CASE WHEN trace IS NOT NULL THEN 'trace' END, 'result', 'owner', 'tenant', 'error'], NULL);
    END IF;

    IF wanted IS NOT NULL AND (after IS NULL OR place IS NOT NULL) THEN
        FOR met IN SELECT k.* FROM once._find_key(wanted, of_tenant, of_scope, remaining + 1,
                convert_from(decode(place[2], 'hex'), getdatabaseencoding()),
                convert_from(decode(place[3], 'hex'), getdatabaseencoding())) AS k LOOP
            IF remaining = 0 THEN
                stored := NULL; archived := NULL; found_by := NULL;
                share := 0;
                next := coalesce(next, 'key::');
                RETURN NEXT;
                RETURN;
            END IF;
            remaining := remaining - 1;
            next := format('key:%s:%s', encode(convert_to((met.stored).scope, getdatabaseencoding()), 'hex'),
                           encode(convert_to((met.stored).tenant, getdatabaseencoding()), 'hex'));
            CONTINUE WHEN (met.stored).state::text <> of_state OR (met.stored).created_at < since OR (met.stored).created_at >= until;
            stored := met.stored;
            archived := met.archived;
            found_by := 'key';
            RETURN NEXT;
        END LOOP;
        after := NULL;
    END IF;
    after := regexp_replace(after, '^[0-9]{1,6}/', '');

    -- The limit comes before the row is built: it shows no bodies, and none is read.
    intents := format($sql$
        SELECT i.address, i.note, %s AS stored
          FROM (SELECT i.ctid AS address, %s AS note, i.* FROM {leaf} AS i
                 WHERE {here} AND i.ctid < $1 AND ($3 IS NULL OR i.tenant COLLATE "C" = $3) AND ($4 IS NULL OR i.scope COLLATE "C" = $4)
                   AND ($6 IS NULL OR i.created_at >= $6) AND ($7 IS NULL OR i.created_at < $7) AND %s AND %s IS NOT NULL {more}
                 ORDER BY i.ctid DESC LIMIT $2) AS i
        $sql$, once._intent_without_answer(), reason, coalesce('i.state = ' || quote_literal(of_state), 'true'), reason);
    FOR met IN SELECT w.*
                 FROM once._walk((ARRAY['once.intent', 'once.archive', 'once.outbox'])[:tables]::regclass[],
                          (ARRAY[format($sql$CASE WHEN {n} = 0 THEN 500000 WHEN c.relname ~ 'closed' AND {n} < %s THEN 600000 - {n}
                                             ELSE 200000 - {n} END$sql$, lowest), '1000000000 - {n}', '100000 - {n}'])[:tables],
                          (ARRAY[replace(intents, '{more}', ''), replace(intents, '{more}', 'AND i.bucket < ' || lowest), events])[:tables],
                          true, of_tenant, of_scope,
                          ARRAY[wanted, trace, lower(wanted), event::text], since, until, remaining, after, '30 milliseconds') AS w LOOP
        open_days := coalesce(open_days, ARRAY(SELECT d FROM once._days('once.intent', 'intent_d') AS d));     -- after the walk
        next := least(lowest, (SELECT min(d) FROM unnest(open_days) AS d WHERE 200000 - d < split_part(met.next, ':', 1)::bigint))
                || '/' || met.next;
        stored := met.stored;
        archived := met.source = 'once.archive'::regclass;
        found_by := nullif(met.note, '');
        IF met.source = 'once.outbox'::regclass THEN
            SELECT e.* INTO one FROM once._find_of_event(met.stored, wanted, trace, event) AS e;
            stored := one.stored;
            archived := one.archived;
            found_by := one.found_by;
            CONTINUE WHEN stored.state IS NULL OR stored.state::text <> of_state OR stored.created_at < since OR stored.created_at >= until;
        ELSIF met.source IS NULL THEN
            share := met.share;
            IF (SELECT h.inhparent <> 'once.outbox'::regclass FROM pg_inherits AS h WHERE h.inhrelid = met.leaf) THEN
                EXECUTE once._sql_for_blocks(met.leaf, greatest(split_part(met.next, ':', 2)::bigint, 1) - 1,
                                             greatest(split_part(met.next, ':', 2)::bigint, 1),
                                             'SELECT max(i.created_at) FROM {leaf} AS i WHERE {here}') INTO reached;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
