-- SPDX-License-Identifier: PostgreSQL
-- once.top(): the current activity by scope: attempts in flight, stale ones (their lease has passed, or ends in more than 8 days: see
-- once.resolve), intents in doubt, and how long the oldest attempt in flight or stale has been running. No row for a scope without any.
-- Reads the whole table.
CREATE FUNCTION once.top() RETURNS TABLE (scope text, in_flight bigint, stale bigint, in_doubt bigint, oldest_seconds double precision)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    SELECT i.scope::text, count(*) FILTER (WHERE i.state = 'processing' AND once._is_live(i.lease_until, now)),
           count(*) FILTER (WHERE i.state = 'processing' AND NOT once._is_live(i.lease_until, now)),
           count(*) FILTER (WHERE i.state = 'in_doubt'),
           greatest(date_part('epoch', now - min(i.updated_at) FILTER (WHERE i.state = 'processing')), 0)
      FROM once.intent AS i WHERE i.state IN ('processing', 'in_doubt')
     GROUP BY i.scope ORDER BY i.scope;
END $$;
