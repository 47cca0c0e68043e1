-- SPDX-License-Identifier: PostgreSQL
-- once._move_behind(slot, before): why the events of this slot that were emitted before this time hold up its move: a relay has not passed
-- them, one is parked, or there is no relay. Its later events come from another node, and would overtake them. NULL: nothing does.
CREATE FUNCTION once._move_behind(slot integer, before timestamptz) RETURNS text
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    why text;
BEGIN
    PERFORM once._follow_slots();
    SELECT format('%s events are parked with relay %L: retry or discard them (pgonce parked)', count(*), p.relay) INTO why
      FROM once.parked_event AS p WHERE once.slot_of(p.tenant) = slot GROUP BY p.relay ORDER BY p.relay LIMIT 1;
    IF why IS NOT NULL THEN
        RETURN why;
    END IF;
    SELECT CASE WHEN r.written_by <> r.xmin
                THEN format('the progress of relay %L was not written in this database: see once.relay_adopt', r.relay)
                ELSE format('relay %L has not passed the event %s', r.relay, e.event_id) END
      INTO why
      FROM once.relay AS r
     CROSS JOIN LATERAL (
           SELECT n.event_id
             FROM (SELECT o.tenant, o.topic, o.created_at, o.id, o.xid, o.event_id FROM once.outbox AS o
                    WHERE o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(r.seen) AS x))
                    UNION ALL
                   SELECT o.tenant, o.topic, o.created_at, o.id, o.xid, o.event_id FROM once.outbox AS o
                    WHERE o.xid >= pg_snapshot_xmax(r.seen)) AS n
            WHERE once.slot_of(n.tenant) = slot AND n.created_at < before
              AND (r.reading IS NULL OR n.id > r.after_id OR NOT pg_visible_in_snapshot(n.xid, r.reading))
              AND (r.topics IS NULL OR n.topic LIKE ANY (r.topics))
            LIMIT 1) AS e
     ORDER BY r.relay LIMIT 1;
    IF why IS NULL AND NOT EXISTS (SELECT FROM once.relay)
       AND EXISTS (SELECT FROM once.outbox AS o WHERE once.slot_of(o.tenant) = slot) THEN
        why := 'it has events, and no relay has existed that could publish them: start one (pgonce relay)';
    END IF;
    RETURN why;
END $$;
