-- SPDX-License-Identifier: PostgreSQL
-- The schema of the functions that only relays, consumers and keepers call. Created with the functions and not with the schema once:
-- CREATE EXTENSION creates that schema itself, and a dump of it alone does not contain this one. It gets the same owner.
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
        RAISE EXCEPTION USING ERRCODE = '3F000', MESSAGE = 'pgonce: a schema "once_job" exists that is not pgonce''s',
            HINT = 'Rename that schema (or drop it, if an earlier pgonce left it), or install into another database.';
    END IF;
    COMMENT ON SCHEMA once_job IS 'pgonce: the functions that only its relays, consumers and keepers call';
END $$;
