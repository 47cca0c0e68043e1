-- SPDX-License-Identifier: PostgreSQL
-- once.add_capture(slot): a logical replication slot of this database, by which Debezium or another client of pgoutput takes
-- events out of once.outbox, counts as a relay from now on: no day of the outbox is dropped that it has not passed, and nothing is
-- deleted that it may bring again. Its name is the relay's. What the outbox holds counts as not yet read: where the client
-- reads the table first (a snapshot), that is held for it, too. False where it is one already. Let the client make its slot
-- first. Ends with once.drop_relay. Raises 55000 where there is no such slot, or it cannot be trusted; 22023 where a relay
-- has this name, 55006 where another session is just making one; P4080 while events come by logical replication.
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
        PERFORM once._refuse_relay('55006', slot, 'another session is at work on this name', 'Try again.');
    ELSIF once._outbox_subscribed() THEN
        PERFORM once._refuse_foreign(slot, 'the events come by a subscription');
    END IF;
    found := once._slot(slot, NULL);
    IF found.why IS NOT NULL THEN
        PERFORM once._refuse_relay('55000', slot, 'the slot cannot be trusted', 'Start its client, which makes it, and call again.',
            found.why);
    END IF;
    PERFORM once._adopt_events();
    INSERT INTO once.relay (relay, seen, started_at, progressed_at) VALUES (slot, '3:3:', now, now);
    PERFORM once._relay_sign(slot);
    INSERT INTO once.capture (slot, mark, mark_lsn) VALUES (slot, '3:3:', '0/0');
    PERFORM once._mark_slot(slot, found.now_on);
    RETURN true;
END $$;
