-- SPDX-License-Identifier: PostgreSQL
-- once._forget(step, leaves, condition, shared, limits): a piece of a step that deletes rows: of these tables, by blocks, what
-- meets the condition (on row i; see once._past), some hundred rows or a tenth of a second, from where the last piece stopped.
-- With shared, rows of intents: each under its advisory lock, and never one that somebody is changing, so that no attempt is
-- disturbed. highest: the highest fence among what is deleted. After a whole pass it rests, the longer the larger the tables are,
-- so as not to read them all day long.
CREATE FUNCTION once._forget(step text, leaves text[], condition text, shared boolean, limits record, OUT done bigint,
    OUT more boolean, OUT highest integer)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    stride bigint := once._stride();
    place once.keeper_step;
    nth integer;
    gone record;
    worked boolean := false;
BEGIN
    done := 0;
    more := false;
    SELECT k.* INTO STRICT place FROM once.keeper_step AS k WHERE k.step = step COLLATE "C" FOR UPDATE;
    IF place.leaf IS NULL AND clock_timestamp() < place.ended_at
       + (SELECT sum(once._blocks(to_regclass('once.' || l))) FROM unnest(leaves) AS l) * interval '1 millisecond'
       AND clock_timestamp() >= place.ended_at THEN
        RETURN;
    END IF;
    nth := array_position(leaves, place.leaf::text);
    IF nth IS NULL THEN         -- a new pass, or the table is gone meanwhile
        nth := 1;
        place.block := 0;
    END IF;
    LOOP
        IF nth > cardinality(leaves) THEN
            place.ended_at := clock_timestamp();
            place.block := 0;
            EXIT;
        ELSIF place.block >= coalesce(once._blocks(to_regclass('once.' || leaves[nth])), 0) THEN
            nth := nth + 1;
            place.block := 0;
            CONTINUE;
        END IF;
        IF worked AND (clock_timestamp() > deadline OR done >= 500) THEN
            more := true;
            EXIT;
        END IF;
        worked := true;
        EXECUTE format('WITH due AS MATERIALIZED (SELECT i.* FROM (SELECT i.ctid AS address, i.* FROM once.%1$s AS i
                                                                    WHERE %2$s AND (%3$s) LIMIT 500) AS i),
                        held AS MATERIALIZED (SELECT d.address FROM due AS d WHERE %4$s),
                        free AS MATERIALIZED (SELECT i.ctid AS address FROM once.%1$s AS i
                                               WHERE i.ctid = ANY (ARRAY(SELECT h.address FROM held AS h)) AND (%3$s)
                                                 FOR UPDATE SKIP LOCKED),
                        gone AS (DELETE FROM once.%1$s AS i WHERE i.ctid = ANY (ARRAY(SELECT f.address FROM free AS f))
                                 RETURNING i.fence)
                        SELECT count(*) AS number, max(g.fence) AS highest, (SELECT count(*) FROM due) AS due FROM gone AS g',
                       leaves[nth], once._range(place.block, place.block + stride), condition,
                       CASE WHEN shared THEN 'pg_try_advisory_xact_lock(once._lock_id(d.tenant, d.scope, d.key))'
                            ELSE 'true' END)
            INTO gone USING limits.now, limits.retention, limits.needed, limits.skew, limits.longest, limits.consumers;
        done := done + gone.number;
        highest := greatest(highest, gone.highest);
        IF gone.due < 500 OR gone.number = 0 THEN     -- else there may be more of them in these blocks
            place.block := place.block + stride;
        END IF;
    END LOOP;
    UPDATE once.keeper_step AS k
       SET leaf = CASE WHEN more THEN leaves[nth] END, block = place.block, ended_at = place.ended_at
     WHERE k.step = step COLLATE "C";
END $$;
