-- SPDX-License-Identifier: PostgreSQL
-- once._find_native(): true. Loads pgonce_native into this session where it is installed in this database: statements that
-- are planned from now on have its functions in the place of the hot ones. A library that is missing or broken is as good
-- as none. A schema of that name may be anybody's, a function in C only a superuser's.
--
-- Why it is written so: IMMUTABLE is not the truth, but the planner then asks when it first plans the expression that has
-- it, once a session as a rule, and leaves out what is true: a call pays nothing for it. Once a session also after
-- DISCARD: once.native is set, by the library or here.
CREATE FUNCTION once._find_native() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    load regprocedure;
BEGIN
    IF current_setting('once.native', true) IS NULL THEN
        load := to_regprocedure('once_native.load()');
        IF load IS NOT NULL AND EXISTS (SELECT FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
                                          WHERE p.oid = load AND l.lanname = 'c') THEN
            BEGIN
                PERFORM once_native.load();
            EXCEPTION WHEN OTHERS THEN
                NULL;       -- SQL decides, as it did before
            END;
        END IF;
        IF current_setting('once.native', true) IS NULL THEN
            PERFORM set_config('once.native', 'none', false);
        END IF;
    END IF;
    RETURN true;
END $$;
