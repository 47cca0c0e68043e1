-- SPDX-License-Identifier: PostgreSQL
-- once._check_term(name, term, term_max): raises 22023 for an invalid lease or retention: see once._is_term.
CREATE FUNCTION once._check_term(name text, term interval, term_max interval) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT once._is_term(term, term_max) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: %s is out of range: %s', name, term),
            DETAIL = format('more than 0, at most %s', term_max), HINT = 'Leave it out to use the policy of the scope.';
    END IF;
END $$;
