-- SPDX-License-Identifier: PostgreSQL
-- once.keeper_status(): the state of each of the keeper's steps: when it last began and last succeeded, its last failure, and how many
-- rows or partitions it has worked on in total. NULLs: it never ran.
CREATE FUNCTION once.keeper_status() RETURNS TABLE (step text, ord integer, last_started timestamptz,
    last_success timestamptz, last_error_at timestamptz, last_error text, done_total bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.step, s.ord, k.last_started, k.last_success, k.last_error_at, k.last_error, coalesce(k.done_total, 0)
      FROM once_job.keep_steps() AS s LEFT JOIN once.keeper_step AS k ON k.step = s.step COLLATE "C"
     ORDER BY s.ord
$$;
