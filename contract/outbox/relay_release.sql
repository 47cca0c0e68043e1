-- SPDX-License-Identifier: PostgreSQL
-- once_job.relay_release(take): moves delayed events that are due to the outbox, the earliest first, at most `take`. Relays call it about
-- once a second and the keeper in each round, so captures get them too. released: how many it has moved. wait_ms: when to call again: 0:
-- at once; NULL: nothing is delayed, or due events cannot be moved now. One session does it at a time, so that the order is kept; the
-- others continue without it. It never waits: an event about which an operator or an application is deciding is left for the next call,
-- and so is one that once.emit is emitting. If the outbox has the event already, from once.emit, the delayed one is dropped. If nothing
-- is due, it costs one look into an index. Does nothing while events arrive by logical replication, or if today has no partition.
CREATE FUNCTION once_job.relay_release(take integer DEFAULT 500, OUT released bigint, OUT wait_ms bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    day integer := floor(date_part('epoch', now) / 86400);
    next_at timestamptz;
    due tid[];
BEGIN
    IF (take > 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: take is how many events to release, at least 1';
    END IF;
    released := 0;
    SELECT d.not_before INTO next_at FROM once.delayed_event AS d ORDER BY d.not_before, d.emitted_at LIMIT 1;
    IF next_at > now THEN
        wait_ms := ceil(date_part('epoch', next_at - now) * 1000);
    END IF;
    IF (next_at <= now) IS NOT TRUE OR once._outbox_subscribed()
       OR NOT pg_try_advisory_xact_lock(hashtextextended('pgonce delayed', 20778)) THEN
        RETURN;
    END IF;
    IF NOT once._has_day('outbox', day) THEN
        PERFORM once._make_days(NULL);
        IF NOT once._has_day('outbox', day) THEN
            RETURN;
        END IF;
    END IF;
    -- Each statement has its own snapshot: this one sees what the previous releaser has left, the next one sees the events emitted before
    -- this session got the event's lock.
    due := ARRAY(
        SELECT l.address
          FROM (SELECT d.ctid AS address, d.tenant, d.scope, d.key, d.event_type FROM once.delayed_event AS d
                 WHERE d.not_before <= now AND once._serves(d.tenant)
                 ORDER BY d.not_before, d.emitted_at LIMIT take FOR UPDATE SKIP LOCKED) AS l
         WHERE l.key IS NULL OR pg_try_advisory_xact_lock(once._event_lock(l.tenant, l.scope, l.key, l.event_type)));
    WHILE (pg_sequence_last_value('once.outbox_day_seq') >= day * 256) IS NOT TRUE LOOP      -- see once._emitted_later
        PERFORM nextval('once.outbox_day_seq');
    END LOOP;
    WITH gone AS (
        DELETE FROM once.delayed_event AS d WHERE d.ctid = ANY (due) RETURNING d.*)
    INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant, scope, key,
        traceparent, headers, payload)
    SELECT day, now, g.event_id, g.topic, g.event_type, g.aggregate_type, g.aggregate_id, g.tenant, g.scope, g.key, g.traceparent,
           g.headers, g.payload
      FROM gone AS g
     WHERE NOT EXISTS (SELECT FROM once.outbox AS o
                        WHERE o.tenant = g.tenant AND o.scope = g.scope AND o.key = g.key AND o.event_type = g.event_type)
     ORDER BY g.not_before, g.emitted_at
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS released = ROW_COUNT;
    -- Even if all due events have been emitted already.
    IF cardinality(due) > 0 THEN
        wait_ms := 0;
    END IF;
END $$;
