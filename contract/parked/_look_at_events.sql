-- SPDX-License-Identifier: PostgreSQL
-- once._look_at_events(wanted, take, after): one part of the matching parked events: at most `take` (10,000), of one relay. Reads no more
-- than 10,000 of them, without a lock. Events parked after the relay's first part are not included, so that it ends however fast a relay
-- parks. Raises 22023 for an unknown relay.
CREATE FUNCTION once._look_at_events(wanted once.parked_filter, take integer, after text) RETURNS once.parked_piece
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    -- The id of the last event read, the id to stop at, the relay.
    place text[] := regexp_match(after, '^event:([0-9]{1,18}):([0-9]{1,18}):(.*)$');
    behind bigint := coalesce(place[1]::bigint, 0);
    until bigint := place[2]::bigint;
    piece once.parked_piece;
    looked bigint;
BEGIN
    IF after IS NOT NULL AND (place[3] = coalesce(wanted.relay, place[3]) COLLATE "C") IS NOT TRUE THEN
        PERFORM once._refuse_place(after);
    ELSIF wanted.relay IS NOT NULL AND NOT EXISTS (SELECT FROM once.relay AS r WHERE r.relay = wanted.relay COLLATE "C") THEN
        PERFORM once._refuse_relay('22023', wanted.relay, 'there is no such relay', 'once.outbox_summary() lists the relays.');
    END IF;
    piece.holder := coalesce(place[3], wanted.relay, (SELECT min(r.relay) FROM once.relay AS r));
    IF until IS NULL THEN
        SELECT coalesce(max(p.id), 0) INTO until FROM once.parked_event AS p WHERE p.relay = piece.holder COLLATE "C";
    END IF;
    WITH part AS MATERIALIZED (
        SELECT p.id, p.topic, p.state,
               -- expand: parked_fits(row => p, sqlstate => NULL,
               --   type => (SELECT o.event_type = wanted.event_type COLLATE "C" FROM once.outbox AS o
               --            WHERE o.xid = p.xid AND o.id = p.id AND o.day = p.day LIMIT 1),
               --   since => coalesce((SELECT o.created_at FROM once.outbox AS o
               --            WHERE o.xid = p.xid AND o.id = p.id AND o.day = p.day LIMIT 1), p.parked_at))
               AS fits
          FROM (SELECT q.* FROM once.parked_event AS q
                 WHERE q.relay = piece.holder COLLATE "C" AND q.id > behind AND q.id <= until ORDER BY q.relay, q.id LIMIT 10000) AS p),
    fit AS (SELECT p.id, p.topic, p.state FROM part AS p WHERE p.fits ORDER BY p.id LIMIT least(take, 10000))
    SELECT (SELECT array_agg(f.id ORDER BY f.id) FROM fit AS f), (SELECT array_agg(f.topic ORDER BY f.id) FROM fit AS f),
           (SELECT array_agg(f.state ORDER BY f.id) FROM fit AS f), count(*), max(p.id)
      INTO piece.ids, piece.topics, piece.states, looked, behind FROM part AS p;
    IF cardinality(piece.ids) = least(take, 10000) THEN
        piece.next := format('event:%s:%s:%s', piece.ids[cardinality(piece.ids)], until, piece.holder);
    ELSIF looked = 10000 THEN
        piece.next := format('event:%s:%s:%s', behind, until, piece.holder);
    ELSIF wanted.relay IS NULL THEN
        SELECT format('event:0:%s:%s', coalesce(max(p.id), 0), r.relay) INTO piece.next
          FROM once.relay AS r LEFT JOIN once.parked_event AS p ON p.relay = r.relay
         WHERE r.relay > piece.holder COLLATE "C" GROUP BY r.relay ORDER BY r.relay LIMIT 1;
    END IF;
    RETURN piece;
END $$;
