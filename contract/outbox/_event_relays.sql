-- SPDX-License-Identifier: PostgreSQL
-- once._event_relays(event): the event's state with each relay that takes its topic, as a JSON array: 'pending', 'waiting', 'retrying',
-- 'dead', 'foreign' (P4080), or 'passed': delivered, discarded, or from before the relay began.
CREATE FUNCTION once._event_relays(event once.outbox) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('relay', r.relay,
                       'state', CASE WHEN p.state IS NOT NULL THEN p.state
                                     WHEN r.written_by <> r.xmin THEN 'foreign'
                                     WHEN pg_visible_in_snapshot(event.xid, r.seen)
                                          OR (pg_visible_in_snapshot(event.xid, r.reading)
                                              AND event.id <= r.after_id) THEN 'passed'
                                     ELSE 'pending' END,
                       'attempts', p.attempts,
                       'next_at', CASE WHEN p.state <> 'dead' AND p.next_at < 'infinity' AND NOT EXISTS (
                                           SELECT FROM once.parked_event AS b WHERE b.relay = p.relay
                                              AND b.aggregate = p.aggregate AND b.id < p.id) THEN p.next_at END,
                       'error', p.error, 'parked_at', p.parked_at, 'updated_at', p.updated_at) ORDER BY r.relay), '[]')
              FROM once.relay AS r LEFT JOIN once.parked_event AS p ON p.relay = r.relay AND p.id = event.id
             WHERE p.id IS NOT NULL OR r.topics IS NULL OR event.topic COLLATE "C" LIKE ANY (r.topics));
END $$;
