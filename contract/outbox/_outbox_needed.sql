-- SPDX-License-Identifier: PostgreSQL
-- once._outbox_needed(day): why a day of the outbox is still needed, and a hint: a relay has not passed all of it, one of its events is
-- parked, or there are events and no relay to publish them. NULL if it is not needed.
CREATE FUNCTION once._outbox_needed(day integer, OUT why text, OUT hint text)
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
BEGIN
    SELECT format('relay %L has not passed all of it', r.relay), CASE WHEN r.written_by <> r.xmin
           THEN 'Its progress was not written in this database: see once.relay_adopt.'
           WHEN EXISTS (SELECT FROM once.capture AS c WHERE c.slot = r.relay)
           THEN 'It is a replication slot: see once.capture_list, or call once.drop_relay if its events are no longer needed.'
           ELSE 'Start it, or call once.drop_relay if its events are no longer needed.' END
      INTO why, hint
      FROM once.relay AS r
     WHERE EXISTS (SELECT FROM once.outbox AS o
                    WHERE o.day = day AND (r.written_by <> r.xmin OR o.xid >= pg_snapshot_xmax(r.seen)))
        OR EXISTS (SELECT FROM once.outbox AS o
                    WHERE o.day = day AND o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(r.seen) AS x)))
     ORDER BY r.relay LIMIT 1;
    IF why IS NULL THEN
        SELECT format('%s of its events are parked with relay %L', count(*), p.relay),
               'See once.parked_list; deliver, retry or discard them.'
          INTO why, hint
          FROM once.parked_event AS p WHERE p.day = day GROUP BY p.relay ORDER BY p.relay LIMIT 1;
    END IF;
    IF why IS NULL AND NOT EXISTS (SELECT FROM once.relay) AND EXISTS (SELECT FROM once.outbox AS o WHERE o.day = day) THEN
        why := 'it has events, and no relay has existed that could publish them';
        hint := 'Start a relay. If these events are not needed, delete them from once.outbox as its owner.';
    END IF;
END $$;
