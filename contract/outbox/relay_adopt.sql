-- SPDX-License-Identifier: PostgreSQL
-- once.relay_adopt(relay, reason, xids_continue): makes a relay whose progress was not written in this database (P4080) a relay of this
-- database. xids_continue: whether the transactions named in its progress are this database's. true: they are, and only the row was
-- written again, by pg_repack, or by a dump that was restored into its own cluster; the relay continues where it was, and skips nothing.
-- false: they are another database's, because everything came by a dump or by logical replication, and it is unknown what was published
-- since. The relay then begins with the events that commit from now on; only once.parked_replay publishes the older events of the outbox;
-- parked events stay parked, and new events get numbers above all present ones. If the relay is a broken replication slot
-- (once.add_capture), the slot is trusted again, and the events that it had not passed are kept until it has passed this moment: first
-- have its client create the slot and, if events may be missing, read the table; xids_continue may be omitted in this case. Recorded in
-- once.parked_decision. Raises 55006 while a session works for the relay, 55000 if its slot cannot be trusted, P4080 while events arrive
-- by logical replication, 22023 for a missing reason, an unknown relay, a missing xids_continue, and for true if its progress is ahead of
-- all transactions here.
CREATE FUNCTION once.relay_adopt(relay text, reason text, xids_continue boolean DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    stored once.relay;
    captured boolean;
    slot record;
BEGIN
    PERFORM once._reason(reason);
    IF NOT pg_try_advisory_xact_lock(once._relay_lock(relay)) THEN
        PERFORM once._refuse_relay('55006', relay, 'a session works for this relay', 'Stop it first.');
    END IF;
    IF once._outbox_subscribed() THEN
        PERFORM once._refuse_foreign(relay, 'the events arrive by a subscription: drop it first');
    END IF;
    -- In the order in which once._follow_slots locks.
    PERFORM FROM once.capture AS c WHERE c.slot = relay COLLATE "C" FOR UPDATE;
    captured := FOUND;
    IF captured THEN
        slot := once._slot(relay, NULL);
        IF slot.why IS NOT NULL THEN
            PERFORM once._refuse_relay('55000', relay, 'the slot cannot be trusted', 'Start its client, which creates it, and call again.',
                slot.why);
        END IF;
        xids_continue := coalesce(xids_continue, false) OR once._relay_own(relay);
    END IF;
    stored := once._relay_row(relay);
    IF xids_continue IS NULL THEN
        PERFORM once._refuse_relay('22023', relay,
            'xids_continue is missing: are the transactions that its progress names this database''s?',
            'true goes on where it was, after pg_repack or a dump restored into the cluster that it is of. false begins now, after a '
            || 'restore from elsewhere: what the outbox holds is then published by once.parked_replay alone.');
    ELSIF xids_continue AND NOT captured AND pg_snapshot_xmax(stored.seen) > pg_snapshot_xmax(pg_current_snapshot()) THEN
        PERFORM once._refuse_relay('22023', relay, 'its progress is ahead of all transactions of this database, so it is another''s',
            'Pass xids_continue => false, then replay what was not published: once.parked_replay.');
    END IF;
    IF NOT xids_continue THEN
        PERFORM once._adopt_events();
        UPDATE once.relay AS r
           SET seen = pg_current_snapshot(), reading = NULL, after_id = 0, progressed_at = clock_timestamp()
         WHERE r.relay = stored.relay;
    END IF;
    -- Its xmin is ours since once._relay_row.
    UPDATE once.relay AS r SET written_by = r.xmin WHERE r.relay = stored.relay;
    IF captured THEN
        PERFORM once._mark_slot(relay, slot.now_on);
    END IF;
    INSERT INTO once.parked_decision (decided_by, reason, what, relay, subject)
    VALUES (session_user, reason, 'adopt', stored.relay, stored.relay);
END $$;
