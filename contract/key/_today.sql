-- SPDX-License-Identifier: PostgreSQL
-- once._today(): the day, counted from 1970-01-01, whose partition the hot functions open alone; NULL at first: no day. Once a day's
-- partitions exist, once.add_days replaces this function by one that returns that day as a constant. It affects plans only: if it is a
-- day behind, because no keeper has run yet, and for keys of other days, calls take the general path, which is slower.
--
-- Why it is written so: a plan that uses it contains the number, so that it opens and locks one partition and not all. Because it is
-- STABLE and inlined, the planner notes that the plan depends on this function, and plans again when it is replaced. It would not if the
-- function were IMMUTABLE and called through another inlined function.
CREATE FUNCTION once._today() RETURNS integer LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT NULL::integer $$;
