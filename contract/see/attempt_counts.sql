-- SPDX-License-Identifier: PostgreSQL
-- once.attempt_counts(): the counts of once.counts() in five kinds, of attempts and messages together: 'new' (it may run, also by a
-- takeover), 'replay' (it got the stored answer), 'mismatch', 'active' (another attempt was running) and 'refused'. pgonce top and the
-- console show these. On a standby it returns no rows.
CREATE FUNCTION once.attempt_counts() RETURNS TABLE (kind text, count bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN c.verdict IN ('stale', 'retryable', 'process') THEN 'new'
                WHEN c.verdict = 'duplicate' THEN 'replay'
                WHEN c.verdict = 'message_mismatch' THEN 'mismatch'
                WHEN c.verdict IN ('final', 'in_doubt', 'expired') THEN 'refused'
                ELSE c.verdict END, sum(c.count)::bigint
      FROM once.counts() AS c GROUP BY 1 ORDER BY 1
$$;
