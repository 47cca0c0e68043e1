-- SPDX-License-Identifier: PostgreSQL
-- once._decide_events(what, reason, of_state, piece): 'retry' or 'discard' for these parked events of one relay, if they are still parked
-- and in of_state (NULL: any). Recorded in once.parked_decision. Holds the relay's row: a running relay waits, and neither overwrites the
-- other.
--
-- An event behind another of its aggregate waits for that one, and has no time of its own: see once._promote and once_job.relay_due.
CREATE FUNCTION once._decide_events(what text, reason text, of_state text, piece once.parked_piece) RETURNS once.parked_piece
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz;
    holder text := piece.holder;
    chosen bigint[] := piece.ids;
    aggregates bigint[];
BEGIN
    PERFORM once._relay_row(holder);
    now := clock_timestamp();
    -- The returned rows are found by their address, as in once._promote; the states are those from before.
    WITH gone AS (
        DELETE FROM once.parked_event AS p
         WHERE what = 'discard' AND p.relay = holder COLLATE "C" AND p.id = ANY (chosen)
           AND (of_state IS NULL OR p.state = of_state COLLATE "C")
        RETURNING p.tenant, p.event_id, p.topic, p.state, p.error, p.aggregate),
    given AS MATERIALIZED (
        SELECT p.ctid AS address, (SELECT true FROM once.parked_event AS e
                                    WHERE e.relay = holder COLLATE "C" AND e.aggregate BETWEEN p.aggregate AND p.aggregate AND e.id < p.id
                                    ORDER BY e.aggregate, e.id LIMIT 1) AS behind, p.*
          FROM once.parked_event AS p
         WHERE what <> 'discard' AND p.relay = holder COLLATE "C" AND p.id = ANY (chosen)
           AND (of_state IS NULL OR p.state = of_state COLLATE "C")),
    changed AS (
        UPDATE once.parked_event AS p
           SET attempts = 0, updated_at = now, state = CASE WHEN g.behind THEN 'waiting' ELSE 'retrying' END,
               next_at = CASE WHEN g.behind THEN 'infinity' ELSE now END
          FROM given AS g WHERE p.ctid = g.address
        RETURNING g.tenant, g.event_id, g.topic, g.state, g.error, g.aggregate),
    decided AS (SELECT g.* FROM gone AS g UNION ALL SELECT c.* FROM changed AS c),
    noted AS (
        INSERT INTO once.parked_decision (decided_by, reason, what, relay, tenant, subject, from_state, error)
        SELECT session_user, reason, what, holder, d.tenant, d.event_id, d.state, d.error FROM decided AS d)
    SELECT array_agg(d.topic), array_agg(d.state), array_agg(DISTINCT d.aggregate) FILTER (WHERE d.aggregate IS NOT NULL)
      INTO piece.topics, piece.states, aggregates FROM decided AS d;
    IF cardinality(aggregates) > 0 THEN
        PERFORM once._promote(holder, aggregates);
    END IF;
    RETURN piece;
END $$;
