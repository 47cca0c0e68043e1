-- SPDX-License-Identifier: PostgreSQL
-- once._is_new_day(): whether once._today() is behind the clock, which it is until the partitions of today and of tomorrow exist. The
-- first calls of a day find that out, since they cannot use the plans for today, and have the partitions created (once._make_days); no
-- other call pays for it. Inlined.
CREATE FUNCTION once._is_new_day() RETURNS boolean LANGUAGE sql AS $$
    SELECT (clock_timestamp() < to_timestamp((once._today() + 1) * 86400::double precision)) IS NOT TRUE
$$;
