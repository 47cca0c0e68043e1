-- SPDX-License-Identifier: PostgreSQL
-- once._adopt_events(): gives the events that came with a restore from another cluster an xid that every snapshot of this
-- one has seen. Theirs would mean nothing here, or, once this cluster has counted so far, something wrong. An event that
-- can be read, though no transaction that could have written it has ended, is such a one. Both searches are by index, so
-- that a call that finds nothing costs nothing. What is parked follows its event.
CREATE FUNCTION once._adopt_events() RETURNS bigint
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    adopted bigint;
BEGIN
    -- One statement and so one snapshot: what it can read, and what it says of xids, agree.
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
    RETURN adopted;
END $$;
