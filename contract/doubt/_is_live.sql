-- SPDX-License-Identifier: PostgreSQL
-- once._is_live(lease_until, now): whether a lease may still be held. False for a lease that has passed, and for one that ends later than
-- any lease taken now could: the longest is 7 days, and one more day allows for a clock that was just set back. Such a lease was taken
-- while the clock was far ahead, and no caller should have to wait for its end. Inlined. once.stuck applies the same rule.
CREATE FUNCTION once._is_live(lease_until timestamptz, now timestamptz) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT lease_until > now AND lease_until <= now + interval '8 days'
$$;
