-- SPDX-License-Identifier: PostgreSQL
-- once._decide_many(what, reason, of_relay, of_topic, of_state, before, dry_run, take, after): a piece of once.outbox_retry_many and
-- once.outbox_discard_many. Looks at no more than 10,000 parked events of one relay, without a lock, and decides about at most
-- `take` that fit, under the relay's row; there their state counts as it is then. What is parked later than the relay's first piece
-- is not met, so that it ends however fast a relay parks.
--
-- What stands behind another of its aggregate waits for it, and has no time of its own: see once._promote and once_job.relay_due.
CREATE FUNCTION once._decide_many(what text, reason text, of_relay text, of_topic text, of_state text, before timestamptz,
    dry_run boolean, take integer, after text) RETURNS TABLE (met_relay text, met_topic text, met_state text, events bigint, next text)
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz;
    place text[] := regexp_match(after, '^([0-9]{1,18}):([0-9]{1,18}):(.*)$');
    holder text := place[3];
    behind bigint := coalesce(place[1]::bigint, 0);
    until bigint := place[2]::bigint;
    ids bigint[];
    looked bigint;
    topics text[];
    states text[];
    aggregates bigint[];
BEGIN
    PERFORM once._check_many(reason, of_state, dry_run, take, after, place IS NOT NULL);
    IF of_relay IS NOT NULL AND NOT EXISTS (SELECT FROM once.relay AS r WHERE r.relay = of_relay COLLATE "C") THEN
        PERFORM once._refuse_relay('22023', of_relay, 'there is no such relay', 'once.outbox_summary() names those there are.');
    END IF;
    holder := coalesce(holder, of_relay, (SELECT min(r.relay) FROM once.relay AS r));
    IF until IS NULL THEN
        SELECT coalesce(max(p.id), 0) INTO until FROM once.parked_event AS p WHERE p.relay = holder COLLATE "C";
    END IF;
    WITH part AS MATERIALIZED (
        SELECT p.id, (of_topic IS NULL OR p.topic = of_topic COLLATE "C") AND (of_state IS NULL OR p.state = of_state COLLATE "C")
                     AND (before IS NULL OR coalesce((SELECT o.created_at FROM once.outbox AS o
                                                       WHERE o.xid = p.xid AND o.id = p.id AND o.day = p.day LIMIT 1), p.parked_at)
                                            < before) AS fits
          FROM (SELECT q.* FROM once.parked_event AS q
                 WHERE q.relay = holder COLLATE "C" AND q.id > behind AND q.id <= until ORDER BY q.relay, q.id LIMIT 10000) AS p)
    SELECT ARRAY(SELECT f.id FROM part AS f WHERE f.fits ORDER BY f.id LIMIT least(take, 10000)), count(*), max(p.id)
      INTO ids, looked, behind FROM part AS p;
    IF dry_run THEN
        SELECT array_agg(p.topic), array_agg(p.state) INTO topics, states
          FROM once.parked_event AS p WHERE p.relay = holder COLLATE "C" AND p.id = ANY (ids);
    ELSIF cardinality(ids) > 0 THEN
        PERFORM once._relay_row(holder);
        now := clock_timestamp();
        -- What is given back is found by its address, as once._promote does; the states are those from before.
        WITH gone AS (
            DELETE FROM once.parked_event AS p
             WHERE what = 'discard' AND p.relay = holder COLLATE "C" AND p.id = ANY (ids)
               AND (of_state IS NULL OR p.state = of_state COLLATE "C")
            RETURNING p.tenant, p.event_id, p.topic, p.state, p.error, p.aggregate),
        given AS MATERIALIZED (
            SELECT p.ctid AS address, p.* FROM once.parked_event AS p
             WHERE what <> 'discard' AND p.relay = holder COLLATE "C" AND p.id = ANY (ids)
               AND (of_state IS NULL OR p.state = of_state COLLATE "C")),
        changed AS (
            UPDATE once.parked_event AS p
               SET state = 'waiting', attempts = 0, updated_at = now,
                   next_at = CASE WHEN p.aggregate IS NULL THEN now ELSE 'infinity' END
              FROM given AS g WHERE p.ctid = g.address
            RETURNING g.tenant, g.event_id, g.topic, g.state, g.error, g.aggregate),
        decided AS (SELECT g.* FROM gone AS g UNION ALL SELECT c.* FROM changed AS c),
        noted AS (
            INSERT INTO once.parked_decision (decided_by, reason, what, relay, tenant, subject, from_state, error)
            SELECT session_user, reason, what, holder, d.tenant, d.event_id, d.state, d.error FROM decided AS d)
        SELECT array_agg(d.topic), array_agg(d.state), array_agg(DISTINCT d.aggregate) FILTER (WHERE d.aggregate IS NOT NULL)
          INTO topics, states, aggregates FROM decided AS d;
        IF cardinality(aggregates) > 0 THEN
            PERFORM once._promote(holder, aggregates);
        END IF;
    END IF;
    IF cardinality(ids) = least(take, 10000) THEN
        next := format('%s:%s:%s', ids[cardinality(ids)], until, holder);
    ELSIF looked = 10000 THEN
        next := format('%s:%s:%s', behind, until, holder);
    ELSIF of_relay IS NULL THEN
        SELECT '0:' || coalesce(max(p.id), 0) || ':' || r.relay INTO next
          FROM once.relay AS r LEFT JOIN once.parked_event AS p ON p.relay = r.relay
         WHERE r.relay > holder COLLATE "C" GROUP BY r.relay ORDER BY r.relay LIMIT 1;
    END IF;
    RETURN QUERY SELECT holder, u.topic, u.state, count(*), next FROM unnest(topics, states) AS u (topic, state)
                  GROUP BY u.topic, u.state ORDER BY u.topic, u.state;
    IF NOT FOUND THEN
        RETURN QUERY SELECT holder, NULL::text, NULL::text, 0::bigint, next;
    END IF;
END $$;
