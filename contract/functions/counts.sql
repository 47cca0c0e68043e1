-- SPDX-License-Identifier: PostgreSQL
-- once.counts(): how often attempts were told what, by scope, since the counters began: 'new', 'replay', 'mismatch', 'active',
-- 'stale' and 'retryable' (taken over), 'final', 'in_doubt', 'expired'; and of messages, by consumer: 'process', 'duplicate',
-- 'message_mismatch'. Scopes without a policy of their own (once.set_scope) are counted together, as ''. An attempt that is
-- rolled back later was told so all the same. The counters begin anew after a crash and in a restored copy; a standby has
-- none (no rows).
CREATE FUNCTION once.counts() RETURNS TABLE (scope text, verdict text, count bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.scope::text, v.verdict, coalesce(pg_sequence_last_value(c.oid), 0)
      FROM once.scope AS p CROSS JOIN once._counted() AS v
      JOIN pg_class AS c ON c.oid = CASE WHEN p.scope = '' THEN to_regclass('once.counted_' || v.verdict)
                                         ELSE once._counter(v.verdict, p.scope, NULL) END
     WHERE NOT (pg_is_in_recovery() AND c.relpersistence = 'u')
     ORDER BY p.scope, v.verdict
$$;
