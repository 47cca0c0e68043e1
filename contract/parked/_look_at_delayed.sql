-- SPDX-License-Identifier: PostgreSQL
-- once._look_at_delayed(wanted, take, after): one part of the matching delayed events, which no relay has yet: at most `take` (10,000) in
-- the order of their ids. Events emitted after the first part are not included.
CREATE FUNCTION once._look_at_delayed(wanted once.parked_filter, take integer, after text) RETURNS once.parked_piece
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    place text[] := regexp_match(after, '^delayed:([0-9]{1,18}):([0-9a-f-]{36})$');
    until timestamptz := coalesce(to_timestamp(place[1]::bigint / 1e6), clock_timestamp());
    piece once.parked_piece;
BEGIN
    IF after IS NOT NULL AND place IS NULL THEN
        PERFORM once._refuse_place(after);
    END IF;
    SELECT array_agg(p.event_id ORDER BY p.event_id), array_agg(p.topic ORDER BY p.event_id), array_agg(p.state ORDER BY p.event_id)
      INTO piece.ids, piece.topics, piece.states
      FROM (SELECT d.event_id, d.topic, d.state
              FROM (SELECT h.event_id, h.emitted_at, h.topic, h.tenant, h.event_type, 'delayed' AS state, NULL AS error
                      FROM once.delayed_event AS h) AS d
             WHERE (place IS NULL OR d.event_id > place[2]::uuid) AND d.emitted_at <= until AND wanted.relay IS NULL AND
                   -- expand: parked_fits(row => d, sqlstate => NULL, since => d.emitted_at,
                   --   type => d.event_type = wanted.event_type COLLATE "C")
             ORDER BY d.event_id LIMIT least(take, 10000)) AS p;
    IF cardinality(piece.ids) = least(take, 10000) THEN
        piece.next := format('delayed:%s:%s', (date_part('epoch', until) * 1e6)::bigint, piece.ids[cardinality(piece.ids)]);
    END IF;
    RETURN piece;
END $$;
