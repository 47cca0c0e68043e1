-- SPDX-License-Identifier: PostgreSQL
-- once._decide_delayed(what, reason, piece): 'retry' (due now) or 'discard' for these delayed events, if they are still delayed. Recorded
-- in once.parked_decision.
CREATE FUNCTION once._decide_delayed(what text, reason text, piece once.parked_piece) RETURNS once.parked_piece
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    chosen uuid[] := piece.ids;
BEGIN
    WITH gone AS (
        DELETE FROM once.delayed_event AS d WHERE what = 'discard' AND d.event_id = ANY (chosen) RETURNING d.tenant, d.event_id, d.topic),
    changed AS (
        UPDATE once.delayed_event AS d SET not_before = least(d.not_before, now) WHERE what <> 'discard' AND d.event_id = ANY (chosen)
        RETURNING d.tenant, d.event_id, d.topic),
    decided AS (SELECT g.* FROM gone AS g UNION ALL SELECT c.* FROM changed AS c),
    noted AS (
        INSERT INTO once.parked_decision (decided_by, reason, what, tenant, subject, from_state)
        SELECT session_user, reason, what, d.tenant, d.event_id, 'delayed' FROM decided AS d)
    SELECT array_agg(d.topic), array_agg('delayed'::text) INTO piece.topics, piece.states FROM decided AS d;
    RETURN piece;
END $$;
