-- SPDX-License-Identifier: PostgreSQL
-- once._adopt_events(): gives events restored from another cluster an xid that every snapshot of this cluster has seen. Their own xids
-- mean nothing here and would be wrong once this cluster has counted that far. An event is from elsewhere if it can be read although no
-- transaction that could have written it here has ended. Both searches use an index, so that a call that finds nothing costs nothing.
-- Parked rows follow their event. Logical replication does not copy sequences: those that number events and parked messages continue
-- after the highest number in use, because an event with the number of a parked one would be mistaken for it. That reads every number,
-- once for a relay.
CREATE FUNCTION once._adopt_events() RETURNS bigint
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    adopted bigint;
BEGIN
    -- One statement and so one snapshot, so that the rows it reads and the xids that it compares agree.
    WITH now AS MATERIALIZED (
        SELECT s.snapshot, pg_snapshot_xmax(s.snapshot) AS beyond,
               ARRAY(SELECT x FROM pg_snapshot_xip(s.snapshot) AS x) AS running,
               coalesce(pg_current_xact_id_if_assigned(), '1'::xid8) AS own
          FROM (SELECT pg_current_snapshot() AS snapshot) AS s),
    foreign_event AS MATERIALIZED (
        SELECT o.id, o.xid, o.day FROM now AS n, once.outbox AS o WHERE o.xid >= n.beyond AND o.xid <> n.own
         UNION ALL
        SELECT o.id, o.xid, o.day FROM now AS n, once.outbox AS o WHERE o.xid = ANY (n.running) AND o.xid <> n.own),
    parked AS (
        UPDATE once.parked_event AS p SET xid = '3' FROM foreign_event AS f WHERE p.id = f.id AND p.xid = f.xid),
    changed AS (
        UPDATE once.outbox AS o SET xid = '3' FROM foreign_event AS f
         WHERE o.day = f.day AND o.xid = f.xid AND o.id = f.id RETURNING 1)
    SELECT count(*) INTO adopted FROM changed;
    -- Only forwards: other sessions may be using it.
    PERFORM setval('once.outbox_id_seq', n.last)
       FROM (SELECT greatest((SELECT max(o.id) FROM once.outbox AS o), (SELECT max(p.id) FROM once.parked_event AS p)) AS last) AS n
      WHERE n.last >= (SELECT s.last_value + s.is_called::integer FROM once.outbox_id_seq AS s);
    PERFORM setval('once.parked_message_position_seq', n.last)
       FROM (SELECT max(p."position") AS last FROM once.parked_message AS p) AS n
      WHERE n.last >= (SELECT s.last_value + s.is_called::integer FROM once.parked_message_position_seq AS s);
    PERFORM setval('once.outbox_day_seq', 256 * n.last)
       FROM (SELECT max(o.day) AS last FROM once.outbox AS o) AS n
      WHERE 256 * n.last > (SELECT s.last_value FROM once.outbox_day_seq AS s);
    RETURN adopted;
END $$;
