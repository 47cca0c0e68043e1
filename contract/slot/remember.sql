-- SPDX-License-Identifier: PostgreSQL
-- Before an upgrade replaces the functions: remembers the slot_of of a divided node, which may be its own. slot/restore.sql puts it back.
DO $$
BEGIN
    PERFORM pg_catalog.set_config('once.slot_of', CASE WHEN pg_catalog.to_regclass('once.slot_0_seq') IS NOT NULL
        THEN pg_catalog.pg_get_functiondef(pg_catalog.to_regprocedure('once.slot_of(text)')) ELSE '' END, true);
END $$;
