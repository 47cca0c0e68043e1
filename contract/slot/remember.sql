-- SPDX-License-Identifier: PostgreSQL
-- Before an upgrade replaces the functions: remembers those that this node has replaced: slot_of, if it is divided, and the anchor.
-- slot/restore.sql puts them back.
DO $$
BEGIN
    PERFORM pg_catalog.set_config('once.slot_of', CASE WHEN pg_catalog.to_regclass('once.slot_0_seq') IS NOT NULL
        THEN pg_catalog.pg_get_functiondef(pg_catalog.to_regprocedure('once.slot_of(text)')) ELSE '' END, true);
    PERFORM pg_catalog.set_config('once.anchor', CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_trigger AS t
                                                                    WHERE t.tgfoid = pg_catalog.to_regprocedure('once._anchor()'))
        THEN pg_catalog.pg_get_functiondef(pg_catalog.to_regprocedure('once._anchor()')) ELSE '' END, true);
END $$;
