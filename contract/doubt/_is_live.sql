-- SPDX-License-Identifier: PostgreSQL
-- once._is_live(lease_until, now): whether a lease may still be held. Not one that has passed, and not one that ends later than
-- any that could be taken now: the longest is of 7 days, and a day more allows for a clock that was just set back. It was taken
-- while the clock was far ahead, and nobody should have to wait for its end. Inlined. once.stuck says the same.
CREATE FUNCTION once._is_live(lease_until timestamptz, now timestamptz) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT lease_until > now AND lease_until <= now + interval '8 days'
$$;
