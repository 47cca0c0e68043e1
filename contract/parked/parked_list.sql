-- SPDX-License-Identifier: PostgreSQL
-- once.parked_list(kind, relay, consumer, tenant, topic, event_type, error, state, before, id, take, after): parked events and messages, at
-- most `take`: 'dead' (after the last attempt: decide with once.parked_retry or once.parked_discard), then 'retrying' (at next_at), then
-- 'waiting' (behind another of its aggregate or key, or for its first attempt); in each state the events by relay, and then the messages
-- by consumer, the oldest first. Each argument narrows the list, as for once.parked_retry_many; NULL does not. Two states, of events, are
-- listed only if state names them: 'pending' (the relay has not reached it yet) and 'delayed' (once.emit_later; no relay has it yet), the
-- first due first. next_at NULL: not before the earlier ones are gone. To continue, pass place of the last row as after, with the same
-- filter. Raises 22023 for a filter that matches nothing and for an invalid place, P4000 for the consumer, P4003 for the tenant.
CREATE FUNCTION once.parked_list(kind text DEFAULT NULL, relay text DEFAULT NULL, consumer text DEFAULT NULL, tenant text DEFAULT NULL,
    topic text DEFAULT NULL, event_type text DEFAULT NULL, error text DEFAULT NULL, state text DEFAULT NULL,
    before timestamptz DEFAULT NULL, id text DEFAULT NULL, take integer DEFAULT 100, after text DEFAULT NULL)
RETURNS SETOF once.parked_item
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    wanted once.parked_filter := once._parked_filter(kind, relay, consumer, tenant, topic, event_type, error, state, before,
        ARRAY['waiting', 'retrying', 'dead', 'pending', 'delayed']);
    event uuid := once._event_id(id);
    -- The number of the state, the kind, the place in it (of a delayed event: its times and its id), and the relay or consumer.
    part text[] := regexp_match(after, '^([1-5]):(event|message):([0-9]{1,18}|[0-9]{1,18}[.][0-9]{1,18}(?:[.][0-9a-f-]{36})?):(.*)$');
    nth integer := part[1]::integer;
    at text[] := string_to_array(part[3], '.');
BEGIN
    IF after IS NOT NULL AND (nth = coalesce(array_position('{delayed,pending}'::text[], state) + 3, least(nth, 3))
       AND cardinality(at) = CASE nth WHEN 4 THEN 3 WHEN 5 THEN 2 ELSE 1 END) IS NOT TRUE THEN
        PERFORM once._refuse_place(after);
    END IF;
    IF (take >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: take=%s is invalid', coalesce(take::text, 'NULL')),
            HINT = 'take: the most rows to list, at least 0.';
    ELSIF state = 'delayed' THEN
        RETURN QUERY
        SELECT 'event', NULL::text, d.state, d.event_id::text, d.topic::text, d.event_type::text, d.tenant::text, d.aggregate_type::text,
               d.aggregate_id::text, NULL::text, 0, d.not_before, d.error, NULL::text, d.emitted_at,
               format('4:event:%s.%s.%s:', (1000000 * extract(epoch FROM d.not_before))::bigint,
                      (1000000 * extract(epoch FROM d.emitted_at))::bigint, d.event_id)
          FROM (SELECT h.*, 'delayed' AS state, NULL AS error FROM once.delayed_event AS h) AS d
         WHERE wanted.relay IS NULL AND (id IS NULL OR d.event_id = event)
           AND (nth IS NULL OR (d.not_before, d.emitted_at, d.event_id) >
                (to_timestamp(0) + at[1]::bigint * interval '1 microsecond',
                 to_timestamp(0) + at[2]::bigint * interval '1 microsecond', at[3]::uuid)) AND
               -- expand: parked_fits(row => d, sqlstate => NULL, since => d.emitted_at,
               --   type => d.event_type = wanted.event_type COLLATE "C")
         ORDER BY d.not_before, d.emitted_at, d.event_id LIMIT take;
        RETURN;
    ELSIF state = 'pending' THEN
        RETURN QUERY
        SELECT 'event', r.relay::text, n.state, n.event_id::text, n.topic::text, n.event_type::text, n.tenant::text, n.aggregate_type::text,
               n.aggregate_id::text, NULL::text, 0, NULL::timestamptz, n.error, NULL::text, n.created_at,
               format('5:event:%s.%s:%s', n.xid, n.id, r.relay)
          FROM once.relay AS r
          -- In the order of their transactions, so that the first few of a long backlog are found at once.
         CROSS JOIN LATERAL (
                (SELECT e.* FROM (SELECT o.*, 'pending' AS state, NULL AS error FROM once.outbox AS o) AS e
                  WHERE e.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(r.seen) AS x))
                    AND (r.topics IS NULL OR e.topic LIKE ANY (r.topics))
                    AND (r.reading IS NULL OR e.id > r.after_id OR NOT pg_visible_in_snapshot(e.xid, r.reading))
                    AND (id IS NULL OR e.event_id = event)
                    AND (nth IS NULL OR r.relay > part[4] COLLATE "C" OR (e.xid, e.id) > (at[1]::xid8, at[2]::bigint)) AND
                        -- expand: parked_fits(row => e, sqlstate => NULL, since => e.created_at,
                        --   type => e.event_type = wanted.event_type COLLATE "C")
                  ORDER BY e.xid, e.id LIMIT take)
                UNION ALL
                (SELECT e.* FROM (SELECT o.*, 'pending' AS state, NULL AS error FROM once.outbox AS o) AS e
                  WHERE e.xid >= pg_snapshot_xmax(r.seen) AND (r.topics IS NULL OR e.topic LIKE ANY (r.topics))
                    AND (r.reading IS NULL OR e.id > r.after_id OR NOT pg_visible_in_snapshot(e.xid, r.reading))
                    AND (id IS NULL OR e.event_id = event)
                    AND (nth IS NULL OR r.relay > part[4] COLLATE "C" OR (e.xid, e.id) > (at[1]::xid8, at[2]::bigint)) AND
                        -- expand: parked_fits(row => e, sqlstate => NULL, since => e.created_at,
                        --   type => e.event_type = wanted.event_type COLLATE "C")
                  ORDER BY e.xid, e.id LIMIT take)) AS n
         WHERE (wanted.relay IS NULL OR r.relay = wanted.relay COLLATE "C") AND r.written_by = r.xmin
           AND (nth IS NULL OR r.relay >= part[4] COLLATE "C")
         ORDER BY r.relay, n.xid, n.id LIMIT take;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT l.kind, l.holder, w.state, l.id, l.topic, l.event_type, l.tenant, l.aggregate_type, l.aggregate_id, l.key, l.attempts,
           l.next_at, l.error, l.sqlstate, l.since, format('%s:%s:%s:%s', w.nth, l.kind, l.place, l.holder)
      FROM (VALUES (1, 'dead'), (2, 'retrying'), (3, 'waiting')) AS w (nth, state)
     CROSS JOIN LATERAL (
          (SELECT 'event' AS kind, p.relay::text AS holder, p.event_id::text AS id, p.topic::text, o.event_type::text, p.tenant::text,
                  p.aggregate_type::text, p.aggregate_id::text, NULL::text AS key, p.attempts,
                  CASE WHEN p.state = 'retrying' OR (p.state = 'waiting' AND NOT EXISTS (
                                SELECT FROM once.parked_event AS b
                                 WHERE b.relay = p.relay AND b.aggregate = p.aggregate AND b.id < p.id))
                       THEN p.next_at END AS next_at, p.error, NULL::text AS sqlstate, o.created_at AS since, p.id AS place
             FROM (SELECT q.* FROM once.parked_event AS q
                    WHERE wanted.kind IS DISTINCT FROM 'message' AND (wanted.relay IS NULL OR q.relay = wanted.relay COLLATE "C")
                      AND (id IS NULL OR q.event_id = event) AND q.state = w.state COLLATE "C"
                      AND (nth IS NULL OR w.nth > nth OR (w.nth = nth AND part[2] = 'event'
                           AND (q.relay, q.id) > (part[4] COLLATE "C", part[3]::bigint))) AND
                          -- expand: parked_fits(row => q, sqlstate => NULL,
                          --   type => (SELECT e.event_type = wanted.event_type COLLATE "C" FROM once.outbox AS e
                          --            WHERE e.xid = q.xid AND e.id = q.id AND e.day = q.day LIMIT 1),
                          --   since => coalesce((SELECT e.created_at FROM once.outbox AS e
                          --            WHERE e.xid = q.xid AND e.id = q.id AND e.day = q.day LIMIT 1), q.parked_at))
                    ORDER BY q.relay, q.id LIMIT take) AS p
             LEFT JOIN LATERAL (SELECT e.event_type, e.created_at FROM once.outbox AS e
                                 WHERE e.xid = p.xid AND e.id = p.id AND e.day = p.day LIMIT 1) AS o ON true)
          UNION ALL
          (SELECT 'message', m.consumer, m.message_id, m.topic, (once._types_of(m.headers))[1], m.tenant, NULL, NULL, m.key, m.attempts,
                  CASE WHEN m.state <> 'dead' THEN m.next_at END, m.error, m.sqlstate, m.parked_at, m.position
             FROM once.parked_message AS m
            WHERE wanted.kind IS DISTINCT FROM 'event' AND (wanted.consumer IS NULL OR m.consumer = wanted.consumer COLLATE "C")
              AND (id IS NULL OR m.message_id = id COLLATE "C") AND m.state = w.state COLLATE "C"
              AND (nth IS NULL OR w.nth > nth OR (w.nth = nth AND (part[2] = 'event'
                   OR (m.consumer, m.position) > (part[4] COLLATE "C", part[3]::bigint)))) AND
                  -- expand: parked_fits(row => m, sqlstate => m.sqlstate, since => m.parked_at,
                  --   type => wanted.event_type = ANY (once._types_of(m.headers)))
            ORDER BY m.consumer, m.position LIMIT take)) AS l
     WHERE (state IS NULL OR w.state = state) AND (nth IS NULL OR w.nth >= nth)
     ORDER BY w.nth, l.kind, l.holder COLLATE "C", l.place LIMIT take;
END $$;
