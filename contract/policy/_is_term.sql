-- SPDX-License-Identifier: PostgreSQL
-- once._is_term(term, term_max): whether a lease or a retention is positive and not too long. An
-- interval is compared as if a month had 30 days, and added by the calendar: '-12 months 361 days' is more than nothing, and
-- ends before it began. So it is added, too: to a February, where months are shortest, as the bounds of once.scope do, and to
-- now, in the session's time zone, as the caller will. Inlined.
CREATE FUNCTION once._is_term(term interval, term_max interval) RETURNS boolean LANGUAGE sql AS $$
    SELECT term > '0' AND term <= term_max
       AND timestamp '2001-02-01' + term > timestamp '2001-02-01' AND timestamp '2001-02-01' + term <= timestamp '2001-02-01' + term_max
       AND clock_timestamp() + term > clock_timestamp()
$$;
