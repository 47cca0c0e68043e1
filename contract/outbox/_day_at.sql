-- SPDX-License-Identifier: PostgreSQL
-- once._day_at(now, day): the day, if this time is in it; else NULL. For a constant day only two comparisons remain. Inlined.
CREATE FUNCTION once._day_at(now timestamptz, day integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN now >= to_timestamp(day * 86400::double precision)
                 AND now < to_timestamp((day + 1) * 86400::double precision) THEN day END
$$;
