-- SPDX-License-Identifier: PostgreSQL
-- once._backlog(): from which time on relays and consumers need the stored answers. A relay: since its oldest event that is neither
-- delivered nor discarded was emitted, because a receiver that gets it again must recognise it (to the day, if thousands wait or one is
-- parked). A consumer: its oldest position. Relays and consumers that need nothing are left out.
CREATE FUNCTION once._backlog() RETURNS TABLE (what text, name text, tenant text, needed_from timestamptz, since timestamptz)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    days integer[] := ARRAY(SELECT once._days('once.outbox', 'outbox_d'));
    relay once.relay;
    day integer;
    oldest timestamptz;
    events bigint;
    parked integer;
BEGIN
    FOR relay IN SELECT r.* FROM once.relay AS r ORDER BY r.relay LOOP
        needed_from := NULL;
        IF NOT once._relay_own(relay.relay) THEN
            needed_from := '-infinity';         -- its progress is unknown
        ELSE
            FOREACH day IN ARRAY days LOOP
                SELECT min(n.created_at), count(*) INTO oldest, events
                  FROM (SELECT o.created_at FROM once.outbox AS o
                         WHERE o.day = day
                           AND (o.xid >= pg_snapshot_xmax(relay.seen)
                                OR o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(relay.seen) AS x)))
                           AND (relay.reading IS NULL OR o.id > relay.after_id
                                OR NOT pg_visible_in_snapshot(o.xid, relay.reading))
                           AND (relay.topics IS NULL OR o.topic LIKE ANY (relay.topics)) LIMIT 10000) AS n;
                IF events > 0 THEN
                    needed_from := CASE WHEN events < 10000 THEN oldest ELSE to_timestamp(day * 86400.0) END;
                    EXIT;
                END IF;
            END LOOP;
            SELECT min(p.day) INTO parked FROM once.parked_event AS p WHERE p.relay = relay.relay;
            needed_from := least(needed_from, to_timestamp(parked * 86400.0));
        END IF;
        IF needed_from IS NOT NULL THEN
            what := 'relay';
            name := relay.relay;
            tenant := NULL;
            since := relay.progressed_at;
            RETURN NEXT;
        END IF;
    END LOOP;
    RETURN QUERY
    SELECT 'consumer', c.consumer::text, c.tenant::text, min(c."position"), min(c.reported_at)
      FROM once.consumer_position AS c GROUP BY c.consumer, c.tenant ORDER BY c.consumer, c.tenant;
END $$;
