-- SPDX-License-Identifier: PostgreSQL
-- once._move_subscribe(conninfo, replication_slot): subscribes to what once._move_publish publishes at the other node, disabled at first:
-- once._move_begin starts it.
CREATE FUNCTION once._move_subscribe(conninfo text, replication_slot text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._execute_ddl(format('CREATE SUBSCRIPTION pgonce_rehome CONNECTION %L PUBLICATION pgonce_rehome'
        ' WITH (create_slot = false, slot_name = %L, enabled = false)', conninfo, replication_slot));
END $$;
