-- SPDX-License-Identifier: PostgreSQL
-- Views carry no state: they are made anew with the functions, whatever columns they had before.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN SELECT c.relname FROM pg_catalog.pg_class AS c
                WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'v' LOOP
        EXECUTE format('DROP VIEW once.%I', old.relname);
    END LOOP;
END $$;
