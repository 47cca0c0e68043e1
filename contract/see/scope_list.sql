-- SPDX-License-Identifier: PostgreSQL
-- once.scope_list(): the policies: a row for the default policy (''), for each scope that has its own, and for each that the keeper's last
-- sweep found stale intents or doubts in. own: it has its own policy. stale, in_doubt, oldest_stale (when its lease passed) and as_of are
-- those of the sweep; NULL if no sweep has ended yet. Reads no intents.
CREATE FUNCTION once.scope_list() RETURNS TABLE (scope text, own boolean, lease interval, retention interval, max_attempts integer,
    on_stale text, verify text, response_bytes_max integer, event_bytes_max integer, stale bigint, in_doubt bigint,
    oldest_stale timestamptz, as_of timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT n.scope, s.scope IS NOT NULL, p.lease, p.retention, p.max_attempts, p.on_stale, p.verify, p.response_bytes_max,
           p.event_bytes_max, coalesce(w.stale, k.none), coalesce(w.in_doubt, k.none), w.oldest_stale, coalesce(w.as_of, k.ended_at)
      FROM (SELECT a.scope FROM once.scope AS a UNION SELECT b.scope FROM once.swept AS b) AS n
      LEFT JOIN once.scope AS s ON s.scope = n.scope
      LEFT JOIN once.swept AS w ON w.scope = n.scope
      LEFT JOIN (SELECT 0 AS none, t.ended_at FROM once.keeper_step AS t WHERE t.step = 'sweep' AND t.ended_at IS NOT NULL) AS k ON true
      JOIN once.scope AS p ON p.scope = coalesce(s.scope, '')
     ORDER BY n.scope
$$;
