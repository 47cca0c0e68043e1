-- SPDX-License-Identifier: PostgreSQL
-- once._keep_sweep(): the step 'sweep': reads the open tables by blocks, recovers stale intents (as once.recover does), and counts those
-- that stay stale or in doubt, by scope: once.swept has the results of the last complete pass. Rests after a pass, longer for larger
-- tables.
CREATE FUNCTION once._keep_sweep() RETURNS once.kept LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    buckets integer[] := ARRAY(SELECT 0 UNION ALL SELECT d FROM once._days('once.intent', 'intent_d') AS d);
    stride bigint := once._stride();
    place once.keeper_step;
    recovered record;
    done bigint := 0;
    more boolean := false;
    nth integer;
    leaf text;
    stale boolean;
    worked boolean := false;
BEGIN
    SELECT k.* INTO STRICT place FROM once.keeper_step AS k WHERE k.step = 'sweep' FOR UPDATE;
    IF place.leaf IS NULL AND clock_timestamp() >= place.ended_at AND clock_timestamp() < place.ended_at
       + (SELECT sum(once._blocks(to_regclass('once.intent_d' || b))) FROM unnest(buckets) AS b) * interval '1 millisecond' THEN
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    nth := array_position(buckets, substr(place.leaf, length('intent_d') + 1)::integer);
    IF place.leaf IS NULL THEN
        DELETE FROM once.sweeping;
    END IF;
    IF nth IS NULL THEN         -- a new pass, or the day has been closed
        nth := coalesce((SELECT min(n) FROM unnest(buckets) WITH ORDINALITY AS u (b, n)
                          WHERE b > substr(place.leaf, length('intent_d') + 1)::integer), 1);
        place.block := 0;
        place.place := NULL;
    END IF;
    LOOP
        leaf := 'intent_d' || buckets[nth];
        IF nth > cardinality(buckets) THEN
            DELETE FROM once.swept;
            INSERT INTO once.swept SELECT s.*, clock_timestamp() FROM once.sweeping AS s;
            place.ended_at := clock_timestamp();
            place.block := 0;
            EXIT;
        ELSIF place.block >= coalesce(once._blocks(to_regclass('once.' || leaf)), 0) THEN
            nth := nth + 1;
            place.block := 0;
            place.place := NULL;
            CONTINUE;
        ELSIF worked AND clock_timestamp() > deadline THEN
            more := true;
            EXIT;
        END IF;
        worked := true;
        IF place.place IS NULL THEN
            EXECUTE once._sql_for_blocks(('once.' || leaf)::regclass, place.block, place.block + stride, $sql$
                SELECT EXISTS (SELECT FROM {leaf} AS i
                                WHERE {here} AND i.state = 'processing' AND i.lease_until <= clock_timestamp())
                $sql$) INTO stale;
            place.place := CASE WHEN stale THEN format('%s:%s:0', buckets[nth], place.block) END;
        END IF;
        IF place.place IS NOT NULL THEN
            stale := false;
            FOR recovered IN SELECT r.* FROM once._recover(1000, NULL, NULL, place.place, place.block + stride) AS r LOOP
                place.place := recovered.next;
                stale := true;
                done := done + (recovered.decided <> 'retry' IS TRUE)::integer;
            END LOOP;
            CONTINUE WHEN stale AND place.place IS NOT NULL;
            place.place := NULL;
        END IF;
        EXECUTE once._sql_for_blocks(('once.' || leaf)::regclass, place.block, place.block + stride, $sql$
            INSERT INTO once.sweeping AS s
            SELECT i.scope, count(*) FILTER (WHERE i.state = 'processing'), count(*) FILTER (WHERE i.state = 'in_doubt'),
                   min(i.lease_until) FILTER (WHERE i.state = 'processing')
              FROM {leaf} AS i
             WHERE {here} AND (i.state = 'in_doubt' OR (i.state = 'processing' AND i.lease_until <= $1))
             GROUP BY i.scope
            ON CONFLICT (scope) DO UPDATE SET stale = s.stale + excluded.stale, in_doubt = s.in_doubt + excluded.in_doubt,
                oldest_stale = least(s.oldest_stale, excluded.oldest_stale)
            $sql$) USING clock_timestamp();
        place.block := place.block + stride;
    END LOOP;
    UPDATE once.keeper_step AS k
       SET leaf = CASE WHEN more THEN leaf END, block = place.block, place = place.place, ended_at = place.ended_at
     WHERE k.step = 'sweep';
    RETURN ROW(done, more, NULL, CASE WHEN done > 0 THEN format('%s stale intents decided', done) END)::once.kept;
END $$;
