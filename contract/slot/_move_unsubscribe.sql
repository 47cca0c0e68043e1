-- SPDX-License-Identifier: PostgreSQL
-- once._move_unsubscribe(): removes the subscription of pgonce rehome, if it exists. Works even if the other node is away.
CREATE FUNCTION once._move_unsubscribe() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid
                WHERE s.subname = 'pgonce_rehome' AND d.datname = current_database()) THEN
        PERFORM once._execute_ddl('ALTER SUBSCRIPTION pgonce_rehome DISABLE');
        PERFORM once._execute_ddl('ALTER SUBSCRIPTION pgonce_rehome SET (slot_name = NONE)');
        PERFORM once._execute_ddl('DROP SUBSCRIPTION pgonce_rehome');
    END IF;
END $$;
