-- SPDX-License-Identifier: PostgreSQL
-- once._keep_untaken(): the step 'untaken': reads the days of the outbox by blocks, and counts by topic the events that no relay takes:
-- once.untaken has the results of the last complete pass. The newest events alone (once.outbox_untaken) would not show a rare topic
-- beside a busy one. Rests after a pass, longer for a larger outbox. Reads nothing if a relay takes all topics, or none has run.
CREATE FUNCTION once._keep_untaken() RETURNS once.kept LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    days integer[] := ARRAY(SELECT d FROM once._days('once.outbox', 'outbox_d') AS d);
    stride bigint := once._stride();
    place once.keeper_step;
    more boolean := false;
    nth integer;
    leaf text;
    worked boolean := false;
BEGIN
    SELECT k.* INTO STRICT place FROM once.keeper_step AS k WHERE k.step = 'untaken' FOR UPDATE;
    IF (SELECT coalesce(bool_or(r.topics IS NULL), true) FROM once.relay AS r) THEN
        DELETE FROM once.untaken;
        UPDATE once.keeper_step AS k SET leaf = NULL, ended_at = NULL
         WHERE k.step = 'untaken' AND (k.leaf IS NOT NULL OR k.ended_at IS NOT NULL);
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    ELSIF place.leaf IS NULL AND clock_timestamp() >= place.ended_at AND clock_timestamp() < place.ended_at
       + (SELECT sum(once._blocks(to_regclass('once.outbox_d' || d))) FROM unnest(days) AS d) * interval '1 millisecond' THEN
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    IF place.leaf IS NULL THEN
        DELETE FROM once.untaking;
        place.block := 0;
    END IF;
    -- The day where the last part stopped, or the next one if that is gone.
    nth := coalesce((SELECT min(n) FROM unnest(days) WITH ORDINALITY AS u (d, n)
                      WHERE place.leaf IS NULL OR d >= substr(place.leaf, length('outbox_d') + 1)::integer), cardinality(days) + 1);
    IF place.leaf <> 'outbox_d' || days[nth] THEN
        place.block := 0;
    END IF;
    LOOP
        leaf := 'outbox_d' || days[nth];
        IF nth > cardinality(days) THEN
            DELETE FROM once.untaken;
            INSERT INTO once.untaken SELECT u.* FROM once.untaking AS u;
            place.ended_at := clock_timestamp();
            EXIT;
        ELSIF place.block >= coalesce(once._blocks(to_regclass('once.' || leaf)), 0) THEN
            nth := nth + 1;
            place.block := 0;
            CONTINUE;
        ELSIF worked AND clock_timestamp() > deadline THEN
            more := true;
            EXIT;
        END IF;
        worked := true;
        EXECUTE once._sql_for_blocks(('once.' || leaf)::regclass, place.block, place.block + stride, $sql$
            INSERT INTO once.untaking AS u
            SELECT t.topic, t.events, t.oldest
              FROM (SELECT i.topic, count(*) AS events, min(i.created_at) AS oldest FROM {leaf} AS i WHERE {here} GROUP BY i.topic) AS t
             WHERE NOT EXISTS (SELECT FROM once.relay AS r WHERE r.topics IS NULL OR t.topic LIKE ANY (r.topics))
            ON CONFLICT (topic) DO UPDATE SET events = u.events + excluded.events, oldest = least(u.oldest, excluded.oldest)
            $sql$);
        place.block := place.block + stride;
    END LOOP;
    UPDATE once.keeper_step AS k
       SET leaf = CASE WHEN more THEN leaf END, block = CASE WHEN more THEN place.block ELSE 0 END, ended_at = place.ended_at
     WHERE k.step = 'untaken';
    RETURN ROW(0, more, NULL, NULL)::once.kept;
END $$;
