-- SPDX-License-Identifier: PostgreSQL
-- The schema of the functions that only relays, consumers and keepers call. Made with the functions and not with the schema once:
-- CREATE EXTENSION makes that one itself, and a dump of that one alone comes without this one. It gets the same owner.
DO $$
DECLARE
    owner oid := (SELECT n.nspowner FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'once');
    present record;
BEGIN
    SELECT n.oid, n.nspowner INTO present FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'once_job';
    IF present.oid IS NULL THEN
        EXECUTE format('CREATE SCHEMA once_job AUTHORIZATION %I', pg_get_userbyid(owner));
    ELSIF present.nspowner <> owner
          OR EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.relnamespace = present.oid)
          OR (EXISTS (SELECT FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = present.oid)
              AND NOT EXISTS (SELECT FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = present.oid AND p.proname = 'keep_step')) THEN
        RAISE EXCEPTION USING ERRCODE = '3F000', MESSAGE = 'pgonce: there is a schema "once_job" that is not pgonce''s',
            HINT = 'Rename that schema (or drop it, if an earlier pgonce has left it), or install into another database.';
    END IF;
    COMMENT ON SCHEMA once_job IS 'pgonce: what only its relays, consumers and keepers call';
END $$;
