-- SPDX-License-Identifier: PostgreSQL
-- once_job.relay_take(relay, topics, from_now): makes this session the only one that works for a relay, until the session ends: it takes
-- a session-level advisory lock, without waiting. taken false: another session has it; try again later. Otherwise returns the relay's
-- progress: everything in `seen` is done; if `reading` is not NULL, so are the events up to after_id among those that only `reading`
-- sees. A new relay begins with all events in the outbox, or, with from_now, with those that commit from now on. topics: LIKE patterns of
-- the topics that it takes, NULL for all; events that it has passed with other patterns stay passed. Do not use it through a pooler in
-- transaction mode, which would give the lock to other clients. Raises 22023 for the name of a replication slot (once.add_capture); P4080
-- if the progress was not written in this database (it came from a dump or by logical replication), if it is ahead of all transactions of
-- this cluster, and while events arrive by logical replication: in these cases the numbers of transactions are invalid here. A promoted
-- standby, a restored base backup and a cluster after pg_upgrade continue: there the numbers are valid.
CREATE FUNCTION once_job.relay_take(relay text, topics text[] DEFAULT NULL, from_now boolean DEFAULT false)
RETURNS TABLE (taken boolean, seen text, reading text, after_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    held boolean;
    foreign_by text;
    stored once.relay;
BEGIN
    IF (length(relay) BETWEEN 1 AND 63) IS NOT TRUE THEN
        PERFORM once._refuse_relay('22023', relay, 'a relay has a name of 1 to 63 characters');
    ELSIF cardinality(topics) = 0
          OR EXISTS (SELECT FROM unnest(topics) AS t (pattern)
                      WHERE (t.pattern <> '' AND t.pattern COLLATE "C" !~ E'(^|[^\\\\])(\\\\\\\\)*\\\\$') IS NOT TRUE) THEN
        PERFORM once._refuse_relay('22023', relay, 'topics is a list of LIKE patterns',
            'Leave it out (NULL) to take all topics. No pattern may be empty, NULL, or end in a lone backslash.');
    END IF;
    IF EXISTS (SELECT FROM once.capture AS c WHERE c.slot = relay COLLATE "C") THEN
        PERFORM once._refuse_relay('22023', relay, 'this relay is a replication slot', 'Give the relay another name, or once.drop_relay.');
    END IF;
    held := once._relay_held(relay);
    IF NOT held AND NOT pg_try_advisory_lock(once._relay_lock(relay)) THEN
        taken := false;
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT r.* INTO stored FROM once.relay AS r WHERE r.relay = relay COLLATE "C";
    foreign_by := CASE
        WHEN once._outbox_subscribed() THEN 'the events arrive by a subscription'
        WHEN stored.relay IS NULL THEN NULL
        WHEN NOT once._relay_own(relay) THEN 'it was not written in this database'
        WHEN pg_snapshot_xmax(coalesce(stored.reading, stored.seen)) > pg_snapshot_xmax(pg_current_snapshot())
            THEN 'it is ahead of all transactions of this cluster' END;
    IF foreign_by IS NOT NULL THEN
        IF NOT held THEN
            PERFORM pg_advisory_unlock(once._relay_lock(relay));    -- a session lock outlives the error
        END IF;
        PERFORM once._refuse_foreign(relay, foreign_by);
    ELSIF stored.relay IS NULL THEN
        PERFORM once._adopt_events();
        INSERT INTO once.relay AS r (relay, topics, seen, started_at, progressed_at)
        VALUES (relay, topics, CASE WHEN from_now THEN pg_current_snapshot() ELSE '3:3:' END, now, now)
        RETURNING r.* INTO stored;
        PERFORM once._relay_sign(relay);
    ELSE
        PERFORM once._relay_row(relay);
        IF stored.topics IS DISTINCT FROM topics THEN
            UPDATE once.relay AS r SET topics = topics WHERE r.relay = relay COLLATE "C";
        END IF;
        PERFORM once._promote(relay, NULL);
    END IF;
    taken := true;
    seen := stored.seen;
    reading := stored.reading;
    after_id := stored.after_id;
    RETURN NEXT;
END $$;
