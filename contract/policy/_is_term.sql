-- SPDX-License-Identifier: PostgreSQL
-- once._is_term(term, term_max): whether a lease or a retention is positive and not too long. PostgreSQL compares intervals as if a month
-- had 30 days, and adds them by the calendar: '-12 months 361 days' is greater than 0, and yet ends before it begins. So this also adds
-- the term: to a February, the shortest month, as the bounds of once.scope do, and to the current time in the session's time zone, as the
-- caller will. Inlined.
CREATE FUNCTION once._is_term(term interval, term_max interval) RETURNS boolean LANGUAGE sql AS $$
    SELECT term > '0' AND term <= term_max
       AND timestamp '2001-02-01' + term > timestamp '2001-02-01' AND timestamp '2001-02-01' + term <= timestamp '2001-02-01' + term_max
       AND clock_timestamp() + term > clock_timestamp()
$$;
