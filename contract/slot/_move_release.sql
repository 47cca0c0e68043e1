-- SPDX-License-Identifier: PostgreSQL
-- once._move_release(subscription): drops the replication slots by which the tables of this subscription were copied, if it is disabled.
-- Each waits for all transactions that are open on this server when it is made. If both nodes are on one server, the transaction that drops
-- the subscription is one of them, and would wait for the slot. Waits up to 10 seconds until they are unused; those that are not stay.
CREATE FUNCTION once._move_release(subscription oid) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    names CONSTANT text := 'pg_' || subscription || '_sync_';
    until timestamptz := clock_timestamp() + interval '10 seconds';
BEGIN
    WHILE clock_timestamp() < until
          AND EXISTS (SELECT FROM pg_replication_slots AS s WHERE starts_with(s.slot_name, names) AND s.active) LOOP
        PERFORM pg_terminate_backend(s.active_pid) FROM pg_replication_slots AS s WHERE starts_with(s.slot_name, names) AND s.active;
        PERFORM pg_sleep(0.01);
    END LOOP;
    PERFORM pg_drop_replication_slot(s.slot_name) FROM pg_replication_slots AS s WHERE starts_with(s.slot_name, names) AND NOT s.active;
END $$;
