-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_summary(): each relay's undelivered events, by topic and state (see once.parked_list), and when the oldest of them was
-- emitted. A relay without any has one row: topic NULL, state 'idle', 0 events. A relay whose progress was not written in this
-- database (P4080) has state 'foreign', and no pending events. Counts, and so reads, all of them.
CREATE FUNCTION once.outbox_summary() RETURNS TABLE (relay text, topic text, state text, events bigint, oldest timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH counted AS (
        SELECT r.relay, n.topic, 'pending' AS state, count(*) AS events, min(n.created_at) AS oldest
          FROM once.relay AS r
         CROSS JOIN LATERAL (
               SELECT o.topic, o.created_at, o.id, o.xid FROM once.outbox AS o
                WHERE o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(r.seen) AS x))
                UNION ALL
               SELECT o.topic, o.created_at, o.id, o.xid FROM once.outbox AS o
                WHERE o.xid >= pg_snapshot_xmax(r.seen)) AS n
         WHERE r.written_by = r.xmin
           AND (r.reading IS NULL OR n.id > r.after_id OR NOT pg_visible_in_snapshot(n.xid, r.reading))
           AND (r.topics IS NULL OR n.topic LIKE ANY (r.topics))
         GROUP BY r.relay, n.topic
         UNION ALL
        SELECT p.relay, p.topic, p.state, p.events, o.created_at
          FROM (SELECT q.relay, q.topic, q.state, count(*) AS events, min(q.id) AS id
                  FROM once.parked_event AS q GROUP BY q.relay, q.topic, q.state) AS p
          JOIN once.parked_event AS f ON f.relay = p.relay AND f.id = p.id
          LEFT JOIN LATERAL (SELECT e.created_at FROM once.outbox AS e
                              WHERE e.xid = f.xid AND e.id = f.id AND e.day = f.day LIMIT 1) AS o ON true)
    SELECT s.relay::text, s.topic::text, s.state::text, s.events, s.oldest
      FROM (SELECT c.relay, c.topic, c.state, c.events, c.oldest FROM counted AS c
             UNION ALL
            SELECT r.relay, NULL, CASE WHEN r.written_by = r.xmin THEN 'idle' ELSE 'foreign' END, 0, NULL
              FROM once.relay AS r
             WHERE r.written_by <> r.xmin OR NOT EXISTS (SELECT FROM counted AS c WHERE c.relay = r.relay)) AS s
     ORDER BY s.relay, s.topic, s.state;
END $$;
