-- SPDX-License-Identifier: PostgreSQL
-- once._is_guarded(): whether once._serves is the guard of a divided node, not the installed function.
CREATE FUNCTION once._is_guarded() RETURNS boolean LANGUAGE sql AS $$
    SELECT p.prosrc <> ' SELECT true ' FROM pg_proc AS p WHERE p.oid = 'once._serves(text)'::regprocedure
$$;
