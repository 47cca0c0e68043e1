-- SPDX-License-Identifier: PostgreSQL
-- once._day_at(now, day): the day, where this time lies in it; else NULL. Of a constant day there is nothing left but two
-- comparisons. Inlined.
CREATE FUNCTION once._day_at(now timestamptz, day integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN now >= to_timestamp(day * 86400::double precision)
                 AND now < to_timestamp((day + 1) * 86400::double precision) THEN day END
$$;
