-- SPDX-License-Identifier: PostgreSQL
-- once.parked_replay(relay, from_time, topic, reason, forgotten, dry_run): makes a relay deliver events again that it has passed: every
-- event still in the outbox that was emitted since from_time (of this topic; NULL: of all that the relay takes) is parked as 'waiting', in
-- order, and newer events of their aggregates wait behind them. Receivers see the same event ids again. Events that are parked already
-- stay as they are. Returns how many it parked; recorded in once.parked_decision. Newer events that a running relay has already read are
-- not held back. Events older than the inboxes' memory would be applied a second time, so they are refused unless forgotten is true:
-- older than the retention of this database's default policy, or of a consumer that reports to this database. About consumers elsewhere
-- nothing is known here: compare with their scopes' retention. Raises 22023 for such events, for a missing reason or time, for an unknown
-- relay, and for a replication slot. A dry run counts and changes nothing.
CREATE FUNCTION once.parked_replay(relay text, from_time timestamptz, topic text, reason text, forgotten boolean DEFAULT false,
    dry_run boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored once.relay;
    parked bigint;
    oldest timestamptz;
    remembered interval;
BEGIN
    PERFORM once._reason(reason);
    IF from_time IS NULL THEN
        PERFORM once._refuse_relay('22023', relay, 'from_time is missing', 'Events since then are replayed.');
    END IF;
    IF EXISTS (SELECT FROM once.capture AS c WHERE c.slot = relay COLLATE "C") THEN
        PERFORM once._refuse_relay('22023', relay, 'this relay is a replication slot, which sends nothing again',
            'Have its client read the table: Debezium by a snapshot.');
    END IF;
    stored := once._relay_row(relay);
    WITH passed AS MATERIALIZED (
        SELECT o.id, o.xid, o.day, o.event_id, o.topic, o.tenant, o.aggregate_type, o.aggregate_id, o.created_at
          FROM once.outbox AS o
         WHERE o.day >= floor(date_part('epoch', from_time) / 86400) AND o.created_at >= from_time
           AND (topic IS NULL OR o.topic = topic COLLATE "C")
           AND (stored.topics IS NULL OR o.topic LIKE ANY (stored.topics))
           AND (pg_visible_in_snapshot(o.xid, stored.seen)
                OR (coalesce(pg_visible_in_snapshot(o.xid, stored.reading), false) AND o.id <= stored.after_id))
    ), made AS (
        INSERT INTO once.parked_event AS p (relay, id, xid, day, event_id, topic, tenant, aggregate_type, aggregate_id, state,
                                            next_at, parked_at, updated_at)
        SELECT stored.relay, o.id, o.xid, o.day, o.event_id, o.topic, o.tenant, o.aggregate_type, o.aggregate_id, 'waiting',
               CASE WHEN o.aggregate_id IS NULL THEN now ELSE 'infinity' END, now, now
          FROM passed AS o WHERE dry_run IS NOT TRUE ORDER BY o.id
        ON CONFLICT ON CONSTRAINT parked_event_pkey DO NOTHING
        RETURNING p.id
    )
    SELECT count(*), min(o.created_at) INTO parked, oldest
      FROM passed AS o LEFT JOIN made AS m ON m.id = o.id
      LEFT JOIN once.parked_event AS p ON p.relay = stored.relay AND p.id = o.id
     WHERE m.id IS NOT NULL OR (dry_run AND p.id IS NULL);
    IF parked > 0 AND forgotten IS NOT TRUE THEN
        SELECT min(s.retention) INTO remembered FROM once.scope AS s
         WHERE s.scope = '' OR s.scope IN (SELECT c.consumer FROM once.consumer_position AS c);
        IF oldest < now - remembered THEN
            PERFORM once._refuse_relay('22023', relay, 'these events are older than an inbox remembers',
                'A consumer that has forgotten them applies them again. Begin later, or, if that is harmless or every consumer '
                    || 'remembers longer, pass forgotten => true (pgonce parked replay --force).',
                format('the oldest was emitted at %s, and the retention is %s', oldest, remembered));
        END IF;
    END IF;
    IF dry_run THEN
        RETURN parked;
    END IF;
    PERFORM once._promote(stored.relay, NULL);
    INSERT INTO once.parked_decision (decided_by, reason, what, relay, subject)
    VALUES (session_user, reason, 'replay', stored.relay, concat_ws(' ', from_time, topic));
    RETURN parked;
END $$;
