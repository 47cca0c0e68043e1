-- SPDX-License-Identifier: PostgreSQL
-- once._check_term(name, term, term_max): raises 22023 for a lease or a retention that is not positive or is too long. An
-- interval is compared as if a month had 30 days, and added by the calendar: '-12 months 361 days' is more than nothing, and
-- ends before it began. So it is added, too: to a February, where months are shortest, as the bounds of once.scope do, and to
-- now, in the session's time zone, as the caller will.
CREATE FUNCTION once._check_term(name text, term interval, term_max interval) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF term IS NULL THEN
        RETURN;
    END IF;
    IF term <= interval '0' OR term > term_max
       OR timestamp '2001-02-01' + term <= timestamp '2001-02-01' OR timestamp '2001-02-01' + term > timestamp '2001-02-01' + term_max
       OR clock_timestamp() + term <= clock_timestamp() THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: %s is out of range: %s', name, term),
            DETAIL = format('more than 0, at most %s', term_max), HINT = 'Leave it out to use the policy of the scope.';
    END IF;
END $$;
