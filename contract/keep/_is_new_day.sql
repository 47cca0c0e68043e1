-- SPDX-License-Identifier: PostgreSQL
-- once._is_new_day(): whether once._today() is behind the clock: it is until the partitions of today and of tomorrow are there. The first
-- calls of a day find it so, on their way past the plans of today, and have them made (once._make_days); no others pay for it. Inlined.
CREATE FUNCTION once._is_new_day() RETURNS boolean LANGUAGE sql AS $$
    SELECT (clock_timestamp() < to_timestamp((once._today() + 1) * 86400::double precision)) IS NOT TRUE
$$;
