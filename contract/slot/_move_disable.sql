-- SPDX-License-Identifier: PostgreSQL
-- once._move_disable(): stops the subscription of pgonce rehome, and returns its oid, or NULL if it does not exist.
CREATE FUNCTION once._move_disable() RETURNS oid LANGUAGE plpgsql AS $$
DECLARE
    subscription oid := (SELECT s.oid FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid
                          WHERE s.subname = 'pgonce_rehome' AND d.datname = current_database());
BEGIN
    IF subscription IS NOT NULL THEN
        PERFORM once._execute_ddl('ALTER SUBSCRIPTION pgonce_rehome DISABLE');
    END IF;
    RETURN subscription;
END $$;
