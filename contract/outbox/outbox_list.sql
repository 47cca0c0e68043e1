-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_list(relay, topic, state, take): events that relays have still to deliver, at most `take`, by relay, and the
-- oldest first: 'pending' (the relay has not come to it yet), 'waiting' (behind another of its aggregate, or for its first
-- attempt), 'retrying' at next_at, 'dead' (after the last attempt: decide with once.outbox_retry or once.outbox_discard). Last, unless a
-- relay is named, come those that no relay has yet: 'delayed' (once.emit_later) until next_at, the first that is due first.
-- Each argument narrows the list; NULL does not. next_at NULL: not before what stands before it is gone.
CREATE FUNCTION once.outbox_list(relay text DEFAULT NULL, topic text DEFAULT NULL, state text DEFAULT NULL,
    take integer DEFAULT 100) RETURNS SETOF once.listed_event
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
BEGIN
    IF state NOT IN ('pending', 'waiting', 'retrying', 'dead', 'delayed') OR (take >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: no such state of an event, or take is missing: %s',
            quote_nullable(left(state, 80))), HINT = 'state is one of pending, waiting, retrying, dead, delayed; NULL for all.';
    END IF;
    RETURN QUERY
    SELECT l.relay, l.state, l.topic, l.event_id, l.event_type, l.tenant, l.aggregate_type, l.aggregate_id, l.attempts,
           l.next_at, l.error, l.created_at
      FROM (
        (SELECT p.relay::text, p.state::text, p.topic::text, p.event_id, o.event_type::text, p.tenant::text,
                p.aggregate_type::text, p.aggregate_id::text, p.attempts,
                CASE WHEN p.state = 'retrying' OR (p.state = 'waiting' AND NOT EXISTS (
                              SELECT FROM once.parked_event AS b
                               WHERE b.relay = p.relay AND b.aggregate = p.aggregate AND b.id < p.id))
                     THEN p.next_at END AS next_at, p.error, o.created_at, p.id
           FROM (SELECT q.* FROM once.parked_event AS q
                  WHERE (relay IS NULL OR q.relay = relay COLLATE "C") AND (topic IS NULL OR q.topic = topic COLLATE "C")
                    AND (state IS NULL OR q.state = state COLLATE "C")
                  ORDER BY q.relay, q.id LIMIT take) AS p
           LEFT JOIN LATERAL (SELECT e.event_type, e.created_at FROM once.outbox AS e
                               WHERE e.xid = p.xid AND e.id = p.id AND e.day = p.day LIMIT 1) AS o ON true)
        UNION ALL
        (SELECT r.relay::text, 'pending', n.topic::text, n.event_id, n.event_type::text, n.tenant::text,
                n.aggregate_type::text, n.aggregate_id::text, 0, NULL, NULL, n.created_at, n.id
           FROM once.relay AS r
          -- In the order of their transactions, so that a few of a long backlog are had at once.
          CROSS JOIN LATERAL (
                (SELECT o.* FROM once.outbox AS o
                  WHERE o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(r.seen) AS x))
                    AND (r.reading IS NULL OR o.id > r.after_id OR NOT pg_visible_in_snapshot(o.xid, r.reading))
                    AND (r.topics IS NULL OR o.topic LIKE ANY (r.topics))
                    AND (topic IS NULL OR o.topic = topic COLLATE "C")
                  ORDER BY o.xid, o.id LIMIT take)
                UNION ALL
                (SELECT o.* FROM once.outbox AS o
                  WHERE o.xid >= pg_snapshot_xmax(r.seen)
                    AND (r.reading IS NULL OR o.id > r.after_id OR NOT pg_visible_in_snapshot(o.xid, r.reading))
                    AND (r.topics IS NULL OR o.topic LIKE ANY (r.topics))
                    AND (topic IS NULL OR o.topic = topic COLLATE "C")
                  ORDER BY o.xid, o.id LIMIT take)) AS n
          WHERE (relay IS NULL OR r.relay = relay COLLATE "C") AND coalesce(state, 'pending') = 'pending'
            AND r.written_by = r.xmin)
        UNION ALL
        (SELECT NULL, 'delayed', d.topic::text, d.event_id, d.event_type::text, d.tenant::text, d.aggregate_type::text,
                d.aggregate_id::text, 0, d.not_before, NULL, d.emitted_at, NULL
           FROM once.delayed_event AS d
          WHERE relay IS NULL AND coalesce(state, 'delayed') = 'delayed' AND (topic IS NULL OR d.topic = topic COLLATE "C")
          ORDER BY d.not_before, d.emitted_at LIMIT take)) AS l
     ORDER BY l.relay COLLATE "C", l.id, l.next_at, l.created_at LIMIT take;
END $$;
