-- SPDX-License-Identifier: PostgreSQL
-- once._demote(relay, now, until): makes parked events that are due by their time (NULL: now) but behind another event of their
-- aggregate, normally a dead one, wait for once._promote, 1000 at a time. It searches again under the relay's row, because it could
-- otherwise miss that the other event has gone. If another session holds that row, perhaps an operator with an open decision, the next
-- call does it. It does nothing in a session that does not hold the relay, which cannot know how the holder treats dead events.
CREATE FUNCTION once._demote(relay text, now timestamptz, until timestamptz DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    behind tid[];
BEGIN
    FOR round IN 1 .. 2 LOOP
        behind := ARRAY(
            SELECT p.ctid FROM once.parked_event AS p
             WHERE p.relay = relay COLLATE "C" AND p.state <> 'dead' AND p.next_at <= coalesce(until, now)
               AND p.id > ANY (ARRAY(SELECT e.id FROM once.parked_event AS e
                                      WHERE e.relay = relay COLLATE "C" AND e.aggregate BETWEEN p.aggregate AND p.aggregate
                                      ORDER BY e.aggregate, e.id LIMIT 1))
             ORDER BY p.next_at LIMIT 1000);
        IF cardinality(behind) = 0 THEN
            RETURN;
        ELSIF round = 1 THEN
            IF NOT once._relay_held(relay) THEN
                RETURN;
            END IF;
            PERFORM FROM once.relay AS r WHERE r.relay = relay COLLATE "C" FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN;
            END IF;
            PERFORM once._relay_row(relay);
        END IF;
    END LOOP;
    UPDATE once.parked_event AS p SET next_at = 'infinity', updated_at = now WHERE p.ctid = ANY (behind);
END $$;
