-- SPDX-License-Identifier: PostgreSQL
-- once._find_native(): true. Loads pgonce_native into this session if it is installed in this database: statements planned from now on
-- use its functions instead of the hot ones. A missing or broken library counts as not installed. Anybody may own a schema of that name,
-- but only a superuser a function in C.
--
-- Why it is written so: it is not really IMMUTABLE, but so the planner evaluates it when it first plans an expression that contains it,
-- normally once a session, and then removes the constant true: a call pays nothing for it. After DISCARD it also runs only once a
-- session: the library or this function sets once.native.
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
                NULL;       -- the SQL functions decide, as before
            END;
        END IF;
        IF current_setting('once.native', true) IS NULL THEN
            PERFORM set_config('once.native', 'none', false);
        END IF;
    END IF;
    RETURN true;
END $$;
