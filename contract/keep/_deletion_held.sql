-- SPDX-License-Identifier: PostgreSQL
-- once._deletion_held(): why no intent may be deleted or archived now: the clock (once._clock_held), or slots that are moving. NULL:
-- nothing prevents it.
CREATE FUNCTION once._deletion_held() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(once._clock_held(), CASE WHEN once._is_moving() THEN 'slots are moving: pgonce rehome has not ended' END)
$$;
