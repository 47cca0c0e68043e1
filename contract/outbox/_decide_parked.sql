-- SPDX-License-Identifier: PostgreSQL
-- once._decide_parked(event_id, relay, reason, what): 'retry' or 'discard' of a parked event, with one
-- relay or (NULL) with each that has it parked, or of one that is delayed, which no relay has yet:
-- once.outbox_retry and once.outbox_discard.
CREATE FUNCTION once._decide_parked(event_id uuid, relay text, reason text, what text) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    holder text;
    before once.parked_event;
    held once.delayed_event;
    decided boolean := false;
BEGIN
    PERFORM once._reason(reason);
    IF relay IS NULL THEN
        SELECT d.* INTO held FROM once.delayed_event AS d WHERE d.event_id = event_id FOR UPDATE;
        IF FOUND THEN
            IF what = 'discard' THEN
                DELETE FROM once.delayed_event AS d WHERE d.event_id = event_id;
            ELSE
                UPDATE once.delayed_event AS d SET not_before = least(d.not_before, now) WHERE d.event_id = event_id;
            END IF;
            INSERT INTO once.parked_decision (decided_by, reason, what, tenant, subject, from_state)
            VALUES (session_user, reason, what, held.tenant, event_id, 'delayed');
            decided := true;
        END IF;
    END IF;
    FOR holder IN SELECT DISTINCT p.relay FROM once.parked_event AS p WHERE relay IS NULL AND p.event_id = event_id
                   UNION ALL SELECT relay COLLATE "C" WHERE relay IS NOT NULL ORDER BY 1 LOOP
        PERFORM once._relay_row(holder);
        -- As a rule one; but an event that came twice into the outbox is parked twice.
        FOR before IN SELECT p.* FROM once.parked_event AS p
                       WHERE p.relay = holder COLLATE "C" AND p.event_id = event_id ORDER BY p.id FOR UPDATE LOOP
            IF what = 'discard' THEN
                DELETE FROM once.parked_event AS p WHERE p.relay = before.relay AND p.id = before.id;
                PERFORM once._promote(before.relay, ARRAY[before.aggregate]);
            ELSE
                UPDATE once.parked_event AS p SET state = 'retrying', attempts = 0, next_at = now, updated_at = now
                 WHERE p.relay = before.relay AND p.id = before.id;
            END IF;
            INSERT INTO once.parked_decision (decided_by, reason, what, relay, tenant, subject, from_state, error)
            VALUES (session_user, reason, what, before.relay, before.tenant, before.event_id, before.state, before.error);
            decided := true;
        END LOOP;
    END LOOP;
    RETURN decided;
END $$;
