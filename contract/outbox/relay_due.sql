-- SPDX-License-Identifier: PostgreSQL
-- once_job.relay_due(relay, take, skip_dead): parked events to try now, at most `take`, in the order of their ids: those that are due and
-- before which no event of their aggregate is parked with this relay (with skip_dead: none that is not dead), the longest due first; and
-- after each of them those of its aggregate that wait for nothing else, so that a chain can be delivered at once. An event without an
-- aggregate waits for no other. attempts: how many attempts have failed. skip_dead stays the same as long as a session holds the relay:
-- another value needs once_job.relay_take again. blocked is always false. traceparent: see once_job.relay_fetch.
--
-- Why it is written so: an event that waits behind another is never due by its own time (once._promote), so the first statement reads
-- hardly a row that it does not return, however many wait. A due event behind a dead one would be read each time until an operator
-- decides, so once._demote makes it wait like the others. It searches as far as this function has read, and only if there was such an
-- event: otherwise the first due events are the ones returned.
CREATE FUNCTION once_job.relay_due(relay text, take integer, skip_dead boolean DEFAULT false) RETURNS SETOF once.outgoing
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    heads bigint[];
    due bigint[];
    until timestamptz;
    followers integer;
BEGIN
    IF (take > 0) IS NOT TRUE THEN
        PERFORM once._refuse_relay('22023', relay, 'take is how many events to take, at least 1');
    END IF;
    -- A clock that was ahead has been set back: waits that began before are too long. Checks the longest.
    IF (SELECT p.updated_at FROM once.parked_event AS p
         WHERE p.relay = relay COLLATE "C" AND p.state <> 'dead' AND p.next_at > now AND p.next_at < 'infinity'
         ORDER BY p.next_at DESC LIMIT 1) > now + interval '1 second' THEN
        UPDATE once.parked_event AS p SET next_at = now, updated_at = now
         WHERE p.ctid = ANY (ARRAY(SELECT e.ctid FROM once.parked_event AS e
                                    WHERE e.relay = relay COLLATE "C" AND e.state <> 'dead' AND e.next_at > now
                                      AND e.next_at < 'infinity' AND e.updated_at > now + interval '1 second'
                                      FOR UPDATE SKIP LOCKED));
    END IF;
    SELECT array_agg(h.id), max(h.next_at) INTO heads, until
      FROM (SELECT p.id, p.next_at FROM once.parked_event AS p
             WHERE p.relay = relay COLLATE "C" AND p.state <> 'dead' AND p.next_at <= now
               AND p.id <= ALL (ARRAY(SELECT e.id FROM once.parked_event AS e
                                       WHERE e.relay = relay COLLATE "C" AND e.aggregate BETWEEN p.aggregate AND p.aggregate
                                         AND NOT (skip_dead AND e.state = 'dead')
                                       ORDER BY e.aggregate, e.id LIMIT 1))
             ORDER BY p.next_at, p.id LIMIT take) AS h;
    IF NOT skip_dead THEN
        SELECT array_agg(d.id) INTO due
          FROM (SELECT p.id FROM once.parked_event AS p
                 WHERE p.relay = relay COLLATE "C" AND p.state <> 'dead' AND p.next_at <= now
                 ORDER BY p.next_at, p.id LIMIT take) AS d;
        IF due IS DISTINCT FROM heads THEN
            PERFORM once._demote(relay, now, CASE WHEN cardinality(heads) = take THEN until END);
        END IF;
    END IF;
    IF heads IS NULL THEN
        RETURN;
    END IF;
    followers := (take - cardinality(heads)) / cardinality(heads);      -- of each
    RETURN QUERY
    SELECT o.id, o.xid, o.day, o.event_id, o.topic::text, o.event_type::text, o.aggregate_type::text, o.aggregate_id::text,
           o.tenant::text, o.scope::text, o.key::text, coalesce(o.traceparent,
               (SELECT i.traceparent FROM once.intent AS i
                 WHERE i.tenant = o.tenant COLLATE "C" AND i.scope = o.scope COLLATE "C" AND i.key = o.key COLLATE "C"
                   AND i.bucket = once._bucket(o.key) LIMIT 1))::text,
           o.headers, CASE WHEN o.payload_bytes IS NULL THEN o.payload END, o.payload_bytes, o.content_type::text, o.created_at, c.attempts,
           false
      FROM unnest(heads) AS h (id)
     CROSS JOIN LATERAL (
           SELECT p.id, p.xid, p.day, p.aggregate, p.attempts FROM once.parked_event AS p
            WHERE p.relay = relay COLLATE "C" AND p.id BETWEEN h.id AND h.id ORDER BY p.id LIMIT 1) AS first
     CROSS JOIN LATERAL (
           SELECT first.id, first.xid, first.day, first.attempts
            UNION ALL
           (SELECT f.id, f.xid, f.day, f.attempts
              FROM (SELECT n.*, bool_and(n.state = 'waiting' AND (n.next_at = 'infinity' OR n.next_at <= now))
                                    OVER (ORDER BY n.id) AS free
                      FROM (SELECT e.* FROM once.parked_event AS e
                             WHERE e.relay = relay COLLATE "C" AND e.aggregate BETWEEN first.aggregate AND first.aggregate
                               AND e.id > first.id AND NOT (skip_dead AND e.state = 'dead')
                             ORDER BY e.aggregate, e.id LIMIT followers) AS n) AS f
             WHERE f.free)) AS c
     CROSS JOIN LATERAL (SELECT e.* FROM once.outbox AS e
                          WHERE e.xid = c.xid AND e.id = c.id AND e.day = c.day LIMIT 1) AS o
     ORDER BY o.id;
END $$;
