-- SPDX-License-Identifier: PostgreSQL
-- once._keep_dead(): the step 'dead': gives up dead events and messages that no operator has decided for dead_retention, as
-- once.parked_discard does, and deletes decisions on parked ones of that age.
CREATE FUNCTION once._keep_dead() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    why text := once._clock_held();
    keeps interval := (SELECT s.dead_retention FROM once.setting AS s WHERE s.only_row);
    before timestamptz := once._steady_now() - keeps;
    reason text := format('dead for longer than %s', keeps);
    event once.parked_event;
    message once.parked_message;
    piece once.parked_piece;
    done bigint := 0;
    deleted bigint;
BEGIN
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    FOR event IN SELECT p.* FROM once.parked_event AS p WHERE p.state = 'dead' AND p.updated_at < before
                  ORDER BY p.relay, p.id LIMIT 100 LOOP
        -- The relay's row before the event's, like every decision; if another session has it, the next round does this.
        PERFORM FROM once.relay AS r WHERE r.relay = event.relay COLLATE "C" FOR UPDATE SKIP LOCKED;
        IF FOUND AND EXISTS (SELECT FROM once.parked_event AS p WHERE p.relay = event.relay COLLATE "C" AND p.id = event.id
                                AND p.state = 'dead' AND p.updated_at < before) THEN
            piece.holder := event.relay;
            piece.ids := ARRAY[event.id];
            piece := once._decide_events('discard', reason, 'dead', piece);
            done := done + coalesce(cardinality(piece.topics), 0);
        END IF;
    END LOOP;
    -- Without those that once.parked_discard refuses because their day is not open.
    FOR message IN SELECT p.* FROM once.parked_message AS p WHERE p.state = 'dead' AND p.updated_at < before
                      AND once._day_state(once._bucket(p.message_id)) IN ('open', 'closed')
                    ORDER BY p.position LIMIT 100 FOR UPDATE SKIP LOCKED LOOP
        -- A message that is being received, or worked on under a lease, is left for later.
        IF pg_try_advisory_xact_lock(once._lock_id(message.tenant, message.consumer, message.message_id))
           AND NOT EXISTS (SELECT FROM once.intent AS i
                            WHERE i.tenant = message.tenant COLLATE "C" AND i.scope = message.consumer COLLATE "C"
                              AND i.key = message.message_id COLLATE "C"
                              AND i.state = 'processing' AND i.lease_until > clock_timestamp()) THEN
            done := done + (once._decide_message('discard', reason, message.consumer, message.tenant, message.message_id) IS NULL)::integer;
        END IF;
    END LOOP;
    DELETE FROM once.parked_decision AS d
     WHERE d.ctid = ANY (ARRAY(SELECT o.ctid FROM once.parked_decision AS o WHERE o.decided_at < before LIMIT 500));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    done := done + deleted;
    RETURN ROW(done, done > 0, NULL, CASE WHEN done > 0 THEN format('%s dead events, messages and decisions', done)
        END)::once.kept;
END $$;
