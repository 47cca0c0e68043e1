-- SPDX-License-Identifier: PostgreSQL
-- Views have no state: they are created again with the functions, so their columns may change.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN SELECT c.relname FROM pg_catalog.pg_class AS c
                WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'v' LOOP
        EXECUTE format('DROP VIEW once.%I', old.relname);
    END LOOP;
END $$;
