-- SPDX-License-Identifier: PostgreSQL
-- once._move_unpublish(): removes the publication and the replication slot of pgonce rehome, if they exist. Waits up to 10 seconds until
-- the subscriber has gone; then raises 55006.
CREATE FUNCTION once._move_unpublish() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz := clock_timestamp() + interval '10 seconds';
BEGIN
    WHILE EXISTS (SELECT FROM pg_replication_slots AS s WHERE s.slot_name = once._move_replication_slot() AND s.active) LOOP
        IF clock_timestamp() > until THEN
            RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = 'pgonce: a subscriber still reads the slots that are moving',
                DETAIL = format('replication slot %s', once._move_replication_slot()),
                HINT = 'On the node that received them: ALTER SUBSCRIPTION pgonce_rehome DISABLE.';
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
    PERFORM pg_drop_replication_slot(s.slot_name) FROM pg_replication_slots AS s WHERE s.slot_name = once._move_replication_slot();
    IF EXISTS (SELECT FROM pg_publication AS p WHERE p.pubname = 'pgonce_rehome') THEN
        PERFORM once._execute_ddl('DROP PUBLICATION pgonce_rehome');
    END IF;
END $$;
