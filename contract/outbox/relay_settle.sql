-- SPDX-License-Identifier: PostgreSQL
-- once_job.relay_settle(relay, seen, reading, after_id, delivered, parked): stores a relay's progress and the result for each of its
-- events, in one commit. reading NULL: the batch is done, and `seen` is the new one; otherwise the batch between `seen` and `reading` is
-- done up to after_id. delivered: parked events that have now been delivered (ids that are not parked do no harm). parked: events that
-- were not delivered: state 'waiting' (behind another, or for their first attempt), 'retrying' or 'dead'; wait_ms from now, by the
-- database's clock. known true: it was parked already (it came from once_job.relay_due): if it no longer is, an operator has discarded
-- it, and it stays discarded. attempts: how many attempts have failed, including this one. If that is more than one above the stored
-- number, an operator had it retried while this attempt was under way: this attempt is then the first of its new attempts, and the event
-- is not dead. Raises 55000 if this session does not hold the relay (once_job.relay_take): a relay that lost its connection cannot
-- overwrite its successor. 22023 for an invalid parked event.
CREATE FUNCTION once_job.relay_settle(relay text, seen text, reading text, after_id bigint, delivered bigint[] DEFAULT NULL,
    parked once.parking[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    touched bigint[] := '{}';
BEGIN
    IF seen IS NULL OR (reading IS NOT NULL AND after_id IS NULL)
       OR EXISTS (SELECT FROM unnest(parked) AS p
                   WHERE (p.id IS NOT NULL AND p.xid IS NOT NULL AND p.day IS NOT NULL AND p.event_id IS NOT NULL
                          AND p.topic IS NOT NULL AND p.tenant IS NOT NULL
                          AND p.state IN ('waiting', 'retrying', 'dead')) IS NOT TRUE) THEN
        PERFORM once._refuse_relay('22023', relay, 'the progress or a parked event is incomplete',
            'Pass seen, with reading also after_id, and for each parked event id, xid, day, event_id, topic, tenant, state.');
    END IF;
    IF NOT once._relay_held(relay) THEN
        PERFORM once._refuse_relay('55000', relay, 'this session does not hold the relay',
            'Another session may have taken it: discard what is in memory and call once_job.relay_take.');
    END IF;
    UPDATE once.relay AS r
       SET seen = seen::pg_snapshot, reading = reading::pg_snapshot, progressed_at = now,
           after_id = CASE WHEN reading IS NULL THEN 0 ELSE after_id END, written_by = pg_current_xact_id()::xid
     WHERE r.relay = relay COLLATE "C" AND r.written_by = r.xmin;
    IF NOT FOUND THEN
        PERFORM once._refuse_relay('55000', relay, 'the relay was dropped, or its progress replaced',
            'Call once_job.relay_take to start again.');
    END IF;
    PERFORM once._relay_sign(relay);

    IF cardinality(delivered) > 0 THEN
        WITH gone AS (
            DELETE FROM once.parked_event AS p
             USING (SELECT a.address FROM unnest(delivered) AS u (id)
                     CROSS JOIN LATERAL (SELECT k.ctid AS address FROM once.parked_event AS k
                                          WHERE k.relay = relay COLLATE "C" AND k.id BETWEEN u.id AND u.id ORDER BY k.id LIMIT 1) AS a) AS f
             WHERE p.ctid = f.address RETURNING p.aggregate)
        SELECT array_agg(g.aggregate) INTO touched FROM gone AS g WHERE g.aggregate IS NOT NULL;
    END IF;
    IF cardinality(parked) > 0 THEN
        WITH element AS MATERIALIZED (
            SELECT DISTINCT ON (u.id) u.*, once._aggregate(u.tenant, u.aggregate_type, u.aggregate_id) AS aggregate,
                   (u.state <> 'waiting')::integer AS failed,
                   (SELECT k.ctid FROM once.parked_event AS k
                     WHERE k.relay = relay COLLATE "C" AND k.id BETWEEN u.id AND u.id ORDER BY k.id LIMIT 1) AS address
              FROM unnest(parked) WITH ORDINALITY AS u (id, xid, day, event_id, topic, tenant, aggregate_type, aggregate_id,
                                                        state, attempts, wait_ms, error, known, ord)
             ORDER BY u.id, u.ord DESC),
        again AS (
            UPDATE once.parked_event AS p
               SET state = CASE WHEN e.state = 'dead' AND e.known AND e.attempts > p.attempts + 1 THEN 'retrying' ELSE e.state END,
                   attempts = CASE WHEN e.known AND e.attempts > p.attempts + e.failed THEN p.attempts + e.failed
                                   ELSE coalesce(e.attempts, p.attempts) END,
                   error = left(e.error, 2000), next_at = now + coalesce(e.wait_ms, 0) * interval '1 ms', updated_at = now
              FROM element AS e WHERE p.ctid = e.address)
        INSERT INTO once.parked_event AS p (relay, id, xid, day, event_id, topic, tenant, aggregate_type, aggregate_id,
                                            state, attempts, next_at, error, parked_at, updated_at)
        SELECT relay, e.id, e.xid, e.day, e.event_id, e.topic, e.tenant, e.aggregate_type, e.aggregate_id, e.state,
               coalesce(e.attempts, 0),
               CASE WHEN e.state = 'waiting' AND coalesce(e.wait_ms, 0) = 0 AND (e.behind OR e.id > ANY (ARRAY(
                             SELECT b.id FROM once.parked_event AS b
                              WHERE b.relay = relay COLLATE "C" AND b.aggregate BETWEEN e.aggregate AND e.aggregate
                                AND b.state <> 'dead'
                              ORDER BY b.aggregate, b.id LIMIT 1)))
                    THEN 'infinity' ELSE now + coalesce(e.wait_ms, 0) * interval '1 ms' END,
               left(e.error, 2000), now, now
          FROM (SELECT f.*, f.aggregate IS NOT NULL AND coalesce(bool_or(f.state <> 'dead') OVER (
                                PARTITION BY f.aggregate ORDER BY f.id
                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), false) AS behind
                  FROM element AS f) AS e
         WHERE e.known IS NOT TRUE AND e.address IS NULL
         ORDER BY e.id;
        touched := touched || ARRAY(SELECT once._aggregate(u.tenant, u.aggregate_type, u.aggregate_id)
                                      FROM unnest(parked) AS u WHERE u.aggregate_id IS NOT NULL);
    END IF;
    IF cardinality(touched) > 0 THEN
        PERFORM once._promote(relay, touched);
    END IF;
END $$;
