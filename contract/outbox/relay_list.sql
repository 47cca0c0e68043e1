-- SPDX-License-Identifier: PostgreSQL
-- once_job.relay_list(relay, seen, reading, after_id, take): the batch between two snapshots: the events of the relay's topics that
-- `reading` sees and `seen` did not, after after_id, in the order of their ids, at most `take`. Each committed event is in exactly one
-- batch, and an event that waited for another's lock comes after it. It returns few columns, so that a backlog is listed by ten
-- thousands; once_job.relay_fetch returns the events.
--
-- Why it is written so: the new transactions are those from seen's end to reading's, and those that were running when `seen` was taken
-- and have ended since. Both are searched by index, so that neither published events nor a transaction that stays open for hours are read
-- again each time. While a long batch is being delivered, the ids of the next part are normally close to after_id: it looks for them
-- there first, and skips later ones within the index. Plans are pinned, since a plan made while the outbox was empty would stay.
CREATE FUNCTION once_job.relay_list(relay text, seen text, reading text, after_id bigint, take integer)
RETURNS TABLE (id bigint, xid xid8, day integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_variable
DECLARE
    before pg_snapshot := seen;
    now pg_snapshot := reading;
    first_xid xid8 := pg_snapshot_xmax(before);
    end_xid xid8 := pg_snapshot_xmax(now);
    late xid8[] := ARRAY(SELECT x FROM pg_snapshot_xip(before) AS x WHERE pg_visible_in_snapshot(x, now));
    patterns text[];
    above bigint := coalesce(after_id, 0);
    upto bigint := 9223372036854775807;
    listed integer;
BEGIN
    SELECT r.topics INTO patterns FROM once.relay AS r WHERE r.relay = relay COLLATE "C";
    IF NOT FOUND OR before IS NULL OR now IS NULL OR (take > 0) IS NOT TRUE THEN
        PERFORM once._refuse_relay('22023', relay, 'nothing can be listed',
            'Pass a relay that once_job.relay_take has created, two snapshots, and how many to list.');
    END IF;
    IF above > 0 THEN
        upto := least(above::numeric + 4::bigint * take, upto)::bigint;
    END IF;
    LOOP
        RETURN QUERY
        SELECT n.id, n.xid, n.day
          FROM (SELECT o.id, o.xid, o.day FROM once.outbox AS o
                 WHERE o.xid >= first_xid AND o.xid < end_xid AND o.id > above AND o.id <= upto
                   AND pg_visible_in_snapshot(o.xid, now)
                   AND (patterns IS NULL OR o.topic COLLATE "C" LIKE ANY (patterns))
                 UNION ALL
                SELECT o.id, o.xid, o.day FROM once.outbox AS o
                 WHERE o.xid = ANY (late) AND o.id > above AND o.id <= upto
                   AND (patterns IS NULL OR o.topic COLLATE "C" LIKE ANY (patterns))) AS n
         ORDER BY n.id LIMIT take;
        GET DIAGNOSTICS listed = ROW_COUNT;
        take := take - listed;
        EXIT WHEN take = 0 OR upto = 9223372036854775807;
        above := upto;
        upto := 9223372036854775807;
    END LOOP;
END $$;
