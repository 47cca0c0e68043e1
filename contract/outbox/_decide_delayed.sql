-- SPDX-License-Identifier: PostgreSQL
-- once._decide_delayed(what, reason, of_relay, of_topic, before, dry_run, take, after): a piece of once.outbox_retry_many and
-- once.outbox_discard_many for state 'delayed', which no relay has yet: at most `take` (10,000) in the order of their ids. What is
-- emitted after the first piece is not met.
CREATE FUNCTION once._decide_delayed(what text, reason text, of_relay text, of_topic text, before timestamptz, dry_run boolean,
    take integer, after text) RETURNS TABLE (met_relay text, met_topic text, met_state text, events bigint, next text)
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    place text[] := regexp_match(after, '^([0-9]{1,18}):([0-9a-f-]{36})$');
    until timestamptz := coalesce(to_timestamp(place[1]::bigint / 1e6), now);
    ids uuid[];
    topics text[];
BEGIN
    PERFORM once._check_many(reason, NULL, dry_run, take, after, place IS NOT NULL);
    ids := ARRAY(SELECT d.event_id FROM once.delayed_event AS d
                  WHERE (place IS NULL OR d.event_id > place[2]::uuid) AND d.emitted_at <= until AND of_relay IS NULL
                    AND (of_topic IS NULL OR d.topic = of_topic COLLATE "C") AND (before IS NULL OR d.emitted_at < before)
                  ORDER BY d.event_id LIMIT least(take, 10000));
    IF dry_run THEN
        topics := ARRAY(SELECT d.topic FROM once.delayed_event AS d WHERE d.event_id = ANY (ids));
    ELSIF what = 'discard' THEN
        WITH gone AS (
            DELETE FROM once.delayed_event AS d WHERE d.event_id = ANY (ids) RETURNING d.tenant, d.event_id, d.topic),
        noted AS (
            INSERT INTO once.parked_decision (decided_by, reason, what, tenant, subject, from_state)
            SELECT session_user, reason, what, g.tenant, g.event_id, 'delayed' FROM gone AS g)
        SELECT array_agg(g.topic) INTO topics FROM gone AS g;
    ELSE
        WITH changed AS (
            UPDATE once.delayed_event AS d SET not_before = least(d.not_before, now) WHERE d.event_id = ANY (ids)
            RETURNING d.tenant, d.event_id, d.topic),
        noted AS (
            INSERT INTO once.parked_decision (decided_by, reason, what, tenant, subject, from_state)
            SELECT session_user, reason, what, c.tenant, c.event_id, 'delayed' FROM changed AS c)
        SELECT array_agg(c.topic) INTO topics FROM changed AS c;
    END IF;
    IF cardinality(ids) = least(take, 10000) THEN
        next := format('%s:%s', (date_part('epoch', until) * 1e6)::bigint, ids[cardinality(ids)]);
    END IF;
    RETURN QUERY SELECT NULL::text, u.topic, 'delayed', count(*), next FROM unnest(topics) AS u (topic) GROUP BY u.topic ORDER BY u.topic;
    IF NOT FOUND THEN
        RETURN QUERY SELECT NULL::text, NULL::text, NULL::text, 0::bigint, next;
    END IF;
END $$;
