-- SPDX-License-Identifier: PostgreSQL
-- once.add_capture(slot): from now on a logical replication slot of this database, by which Debezium or another client of pgoutput reads
-- events from once.outbox, counts as a relay: no day of the outbox is dropped before the slot has passed it, and nothing is deleted that
-- it may send again. The relay has the slot's name. All events in the outbox count as not yet read: if the client reads the table first
-- (a snapshot), they are kept for that, too. False if the slot is a capture already. Let the client create its slot first. To end it,
-- call once.drop_relay. Raises 55000 if there is no such slot, or it cannot be trusted; 22023 if a relay has this name, 55006 if another
-- session is creating one; P4080 if events arrive by logical replication.
CREATE FUNCTION once.add_capture(slot text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    found record;
BEGIN
    IF (length(slot) BETWEEN 1 AND 63) IS NOT TRUE THEN
        PERFORM once._refuse_relay('22023', slot, 'a slot has a name of 1 to 63 characters');
    END IF;
    IF EXISTS (SELECT FROM once.capture AS c WHERE c.slot = slot COLLATE "C") THEN
        RETURN false;
    ELSIF EXISTS (SELECT FROM once.relay AS r WHERE r.relay = slot COLLATE "C") THEN
        PERFORM once._refuse_relay('22023', slot, 'a relay has this name', 'Give the slot another one.');
    ELSIF NOT pg_try_advisory_xact_lock(once._relay_lock(slot)) THEN
        PERFORM once._refuse_relay('55006', slot, 'another session is using this name', 'Try again.');
    ELSIF once._outbox_subscribed() THEN
        PERFORM once._refuse_foreign(slot, 'the events arrive by a subscription');
    END IF;
    found := once._slot(slot, NULL);
    IF found.why IS NOT NULL THEN
        PERFORM once._refuse_relay('55000', slot, 'the slot cannot be trusted', 'Start its client, which creates it, and call again.',
            found.why);
    END IF;
    PERFORM once._adopt_events();
    INSERT INTO once.relay (relay, seen, started_at, progressed_at) VALUES (slot, '3:3:', now, now);
    PERFORM once._relay_sign(slot);
    INSERT INTO once.capture (slot, mark, mark_lsn) VALUES (slot, '3:3:', '0/0');
    PERFORM once._mark_slot(slot, found.now_on);
    RETURN true;
END $$;
