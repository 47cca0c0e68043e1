-- SPDX-License-Identifier: PostgreSQL
-- once._recover(take, of_scope, of_tenant, after, upto): the work of once.recover; with upto, within one table up to that block, for the
-- sweep. A cursor is bucket:block:place, the address of the last row that was looked at. It first judges all intents, each under its
-- advisory lock and without a row lock, since a verify function may be slow and a report must not wait for it. Then it stores the
-- decisions, each only if the row is still as it was judged.
CREATE FUNCTION once._recover(take integer, of_scope text, of_tenant text, after text, upto bigint DEFAULT NULL)
RETURNS TABLE (tenant text, scope text, key text, fence integer, answer text, decided text, reason text, next text)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '250 milliseconds';
    limit_rows integer := least(greatest(coalesce(take, 100), 1), 1000);
    place bigint[] := once._parse_cursor(after);
    buckets integer[] := ARRAY(SELECT 0 UNION ALL SELECT d FROM once._days('once.intent', 'intent_d') AS d);
    stride bigint := once._stride();
    judged record;
    answers record;
    stored once.intent[] := '{}';
    verified once.verification[] := '{}';
    failures text[] := '{}';
    cursors text[] := '{}';
    through boolean := false;
    met integer;
    onward text;
    n integer;
BEGIN
    <<tables>>
    LOOP
        -- The table that the cursor names, or the next one if that is gone.
        place := (SELECT CASE WHEN b = place[1] THEN place ELSE ARRAY[b, 0, 0]::bigint[] END
                    FROM unnest(buckets) AS b WHERE b >= place[1] ORDER BY b LIMIT 1);
        IF place IS NULL OR (upto IS NOT NULL AND place[2] >= upto) THEN
            through := true;
            EXIT;
        ELSIF place[2] >= once._blocks(to_regclass('once.intent_d' || place[1])) THEN
            IF upto IS NOT NULL THEN
                through := true;
                EXIT;
            END IF;
            place := ARRAY[place[1] + 1, 0, 0];
            CONTINUE;
        ELSIF (met IS NOT NULL AND clock_timestamp() > deadline) OR cardinality(stored) >= limit_rows THEN
            EXIT;
        END IF;
        met := 0;
        FOR judged IN EXECUTE once._sql_for_blocks(('once.intent_d' || place[1])::regclass, place[2],
                                         least(place[2] - place[2] % stride + stride, upto), $sql$
                          SELECT i.ctid AS address, i::once.intent AS stored FROM {leaf} AS i
                           WHERE {here} AND i.ctid > $1 AND i.state = 'processing' AND i.lease_until <= $2
                             AND ($3 IS NULL OR i.scope COLLATE "C" = $3) AND ($4 IS NULL OR i.tenant COLLATE "C" = $4)
                           ORDER BY i.ctid LIMIT $5
                          $sql$)
                      USING format('(%s,%s)', place[2], place[3])::tid, clock_timestamp(), of_scope, of_tenant,
                            limit_rows LOOP
            met := met + 1;
            place := ARRAY[place[1]] || string_to_array(btrim(judged.address::text, '()'), ',')::bigint[];
            IF once._serves((judged.stored).tenant)
               AND pg_try_advisory_xact_lock(once._lock_id((judged.stored).tenant, (judged.stored).scope, (judged.stored).key))
               AND once._is_unchanged('once.intent', judged.stored) THEN
                SELECT NULL::once.verification AS verified, NULL::text AS failure INTO answers;
                IF (once._policy((judged.stored).scope)).on_stale = 'verify' THEN
                    SELECT a.* INTO answers FROM once._ask(once._policy((judged.stored).scope), (judged.stored).tenant,
                        (judged.stored).scope, (judged.stored).key) AS a;
                END IF;
                stored := array_append(stored, judged.stored);
                verified := array_append(verified, answers.verified);
                failures := array_append(failures, answers.failure);
                cursors := array_append(cursors, array_to_string(place, ':'));
            END IF;
            EXIT tables WHEN clock_timestamp() > deadline OR cardinality(stored) >= limit_rows;
        END LOOP;
        IF met < limit_rows THEN
            place := ARRAY[place[1], place[2] - place[2] % stride + stride, 0];
        END IF;
    END LOOP;

    onward := CASE WHEN NOT through THEN array_to_string(place, ':') END;
    next := onward;
    FOR n IN 1 .. cardinality(stored) LOOP
        tenant := (stored[n]).tenant;
        scope := (stored[n]).scope;
        key := (stored[n]).key;
        fence := (stored[n]).fence;
        answer := (verified[n]).answer;
        SELECT r.* INTO decided, reason FROM once._recover_one(stored[n], once._policy(scope), verified[n], failures[n]) AS r;
        CONTINUE WHEN decided IS NULL;
        IF n < cardinality(stored) THEN
            next := cursors[n];
        ELSE
            next := onward;
        END IF;
        RETURN NEXT;
    END LOOP;
    -- The cursor for the next call, if the last row does not have it.
    IF next IS DISTINCT FROM onward OR (cardinality(stored) = 0 AND NOT through) THEN
        tenant := NULL; scope := NULL; key := NULL; fence := NULL; answer := NULL; decided := NULL; reason := NULL;
        next := onward;
        RETURN NEXT;
    END IF;
END $$;
