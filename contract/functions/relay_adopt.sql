-- SPDX-License-Identifier: PostgreSQL
-- once.relay_adopt(relay, reason, xids_continue): makes a relay whose progress is of another PostgreSQL cluster (P4080) one
-- of this cluster. After a restore (pg_dump, logical replication) nobody knows what was published since the dump: it goes
-- on with what commits from now on, and what the outbox held before is published only where once.outbox_replay says so;
-- what was parked stays parked, and new events are numbered behind all that are there. After pg_upgrade, which changes the
-- cluster's identifier and keeps its transaction ids, pass xids_continue => true: it goes on where it was, and nothing
-- is left out. Recorded in once.parked_decision. Raises 55006 while a session works for the relay, 22023 for a missing reason
-- or an unknown relay.
CREATE FUNCTION once.relay_adopt(relay text, reason text, xids_continue boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    stored once.relay;
BEGIN
    PERFORM once._reason(reason);
    stored := once._relay_row(relay);
    IF NOT pg_try_advisory_xact_lock(once._relay_lock(relay)) THEN
        PERFORM once._refuse_relay('55006', relay, 'a session works for this relay', 'Stop it first.');
    END IF;
    IF xids_continue THEN
        UPDATE once.relay AS r SET system_identifier = (SELECT c.system_identifier FROM pg_control_system() AS c)
         WHERE r.relay = stored.relay;
    ELSE
        PERFORM once._adopt_events();
        UPDATE once.relay AS r
           SET system_identifier = (SELECT c.system_identifier FROM pg_control_system() AS c),
               seen = pg_current_snapshot(), reading = NULL, after_id = 0, progressed_at = clock_timestamp()
         WHERE r.relay = stored.relay;
    END IF;
    INSERT INTO once.parked_decision (decided_by, reason, what, relay, subject)
    VALUES (session_user, reason, 'adopt', stored.relay, stored.relay);
END $$;
