-- SPDX-License-Identifier: PostgreSQL
-- pgonce {release}: {purpose}
-- Made by packaging/sql/build from what pgonce init runs. Do not edit it.
-- Run it with any tool, as the owner of the database or as a role that may CREATE in it. It is one statement, so it does all or nothing,
-- in a transaction or without one. It has no parameters: give it to the driver as it is, without values. Where all is done already, it
-- does nothing. It leaves the settings of the session and of the transaction as they were.
DO $pgonce$
DECLARE
    this_release constant text := '{release}';
    origin constant integer := {origin};    -- the version of the contract that it upgrades; 0: it installs
    goal constant integer := {goal};
    code constant text := '{code_checksum}';
    settings constant text[] := ARRAY['search_path', 'check_function_bodies', 'citus.enable_ddl_propagation', 'lock_timeout'];
    before constant text[] := ARRAY(SELECT pg_catalog.current_setting(s.name, true) FROM pg_catalog.unnest(settings) AS s (name));
    place record;
    present boolean;
    recorded integer := 0;
    release_here text;
    code_current boolean := false;
    rows_here integer := 0;
    migrations integer := 0;
    changed integer;
    whole boolean := false;
    problem text;
BEGIN
{preparation}
{lock}
    EXECUTE {state} INTO place;
    present := place.record_exists;
    IF present AND place.readable THEN
        SELECT count(*), coalesce(max(m.version), 0), count(*) FILTER (WHERE m.version > 0), min(m.pgonce) FILTER (WHERE m.version = 0),
               coalesce(bool_or(m.checksum = code) FILTER (WHERE m.version = 0), false),
               min(m.version) FILTER (WHERE m.checksum <> k.checksum)
          INTO rows_here, recorded, migrations, release_here, code_current, changed
          FROM once.migration AS m LEFT JOIN (VALUES {known}) AS k (version, checksum) USING (version);
        whole := code_current AND recorded = goal AND migrations = recorded AND changed IS NULL;
    END IF;
    problem := CASE
        WHEN place.server_version::integer < 130000 THEN
            format('this server is PostgreSQL %s: use PostgreSQL 13 to 18', place.server_version::integer / 10000)
        WHEN place.schema_exists AND NOT present THEN
            format('there is a schema "once" of %s without a table once.migration, so it is not pgonce''s: %s', place.owner,
                   'rename it, or use another database')
        WHEN NOT present AND origin > 0 THEN
            format('there is no pgonce here: run pgonce.sql of pgonce %s instead of this file', this_release)
        WHEN NOT present AND NOT has_database_privilege(current_database(), 'CREATE') THEN
            format('role %s may not create a schema here: run it as the owner of the database, or GRANT CREATE ON DATABASE %I TO %I',
                   current_user, current_database(), current_user)
        WHEN NOT present OR place.is_extension AND whole THEN NULL
        WHEN place.is_extension THEN 'it was made by CREATE EXTENSION: use ALTER EXTENSION pgonce UPDATE'
        WHEN NOT place.readable OR NOT pg_has_role(place.owner, 'USAGE') THEN
            format('the contract here belongs to %s, and this is role %s: run it as %s', place.owner, current_user, place.owner)
        WHEN rows_here = 0 THEN
            'once.migration has no rows, as after a dump of the schema alone: load the rows of that dump; only if all tables are '
            'empty, DROP SCHEMA once, once_job CASCADE, then run pgonce.sql'
        WHEN recorded > goal OR recorded = goal AND NOT code_current
             AND string_to_array(substring(release_here, '^[0-9]+[0-9.]*[0-9]'), '.')::integer[]
                 > string_to_array(substring(this_release, '^[0-9]+[0-9.]*[0-9]'), '.')::integer[] THEN
            format('contract %s of pgonce %s is here, newer than this file of pgonce %s: leave it out, a contract is never taken back',
                   recorded, release_here, this_release)
        WHEN changed IS NOT NULL OR migrations <> recorded THEN
            format('migration %s is not recorded as pgonce %s knows it: restore the database, since what else was changed is unknown',
                   coalesce(changed, recorded), this_release)
        WHEN NOT whole AND recorded <> origin THEN
            format('contract %s of pgonce %s is here: run upgrade-%s.sql of pgonce %s instead of this file',
                   recorded, release_here, recorded, this_release)
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('pgonce: nothing was changed in database %s: %s', current_database(), problem);
    END IF;

    IF whole AND NOT place.is_extension THEN    -- a role may have been made since, which was missing then
        EXECUTE {grants} INTO whole;
    END IF;
{steps}
    IF NOT whole THEN
{code}
        IF release_here IS NULL THEN
            EXECUTE {record} USING 0, '{code_name}', code, this_release;
        ELSE
            EXECUTE {replace} USING '{code_name}', code, this_release;
        END IF;
    END IF;
{days}

    PERFORM set_config(s.name, before[s.n], true)
       FROM unnest(settings) WITH ORDINALITY AS s (name, n) WHERE before[s.n] IS NOT NULL;
END $pgonce$;
