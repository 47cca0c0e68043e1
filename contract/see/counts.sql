-- SPDX-License-Identifier: PostgreSQL
-- once.counts(): how often attempts in this database got each answer, since the counters began: 'new', 'replay', 'mismatch', 'active',
-- 'stale' and 'retryable' (taken over), 'final', 'in_doubt', 'expired'; and messages: 'process', 'duplicate', 'message_mismatch'. An
-- attempt that is rolled back later is counted, too. The counters restart at 0 after a crash and in a restored copy; a standby has none
-- (no rows). By scope: once.scope_stats.
CREATE FUNCTION once.counts() RETURNS TABLE (verdict text, count bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT substr(c.relname, length('counted_') + 1), coalesce(pg_sequence_last_value(c.oid), 0)
      FROM pg_class AS c
     WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'S' AND c.relname ~ '^counted_'
       AND NOT (pg_is_in_recovery() AND c.relpersistence = 'u')
     ORDER BY 1
$$;
