-- SPDX-License-Identifier: PostgreSQL
-- once._today(): the day, counted from 1970-01-01, whose partition the hot functions open alone; NULL: none, as installed. once.add_days
-- replaces this function by one that returns another constant, when the partitions of that day are there. It decides nothing but
-- which plan is used: where it is a day too late, since no keeper has run yet, and for keys of other days, everything takes
-- the general path, which is slower.
--
-- Why it is written so: a plan that has it contains the number, so that it opens and locks one partition and not all. STABLE and
-- inlined, the planner notes that the plan depends on this function, and makes it anew when it is replaced: IMMUTABLE it would not,
-- where another inlined function stands between.
CREATE FUNCTION once._today() RETURNS integer LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT NULL::integer $$;
