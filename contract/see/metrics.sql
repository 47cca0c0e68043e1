-- SPDX-License-Identifier: PostgreSQL
-- once.metrics(): figures about the contract in this database, for OpenMetrics: a row per sample, sorted by name; kind is 'counter' (its
-- name without the suffix _total) or 'gauge'; labels is an object of texts. Stale and in-doubt figures are those of the keeper's last
-- complete sweep. Reads catalogues, the backlog of the relays and the parked events and messages, but not the intents. Without the rights
-- of pg_monitor the age of the oldest transaction is that of the owner's own sessions. On a standby the counters are left out.
CREATE FUNCTION once.metrics() RETURNS TABLE (name text, kind text, help text, labels jsonb, value double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
    SELECT k.name, k.kind, k.help, coalesce(s.labels, '{}'), s.value
      FROM (SELECT * FROM once._metrics_of_intents() UNION ALL SELECT * FROM once._metrics_of_delivery()
             UNION ALL SELECT * FROM once._metrics_of_keeping() UNION ALL SELECT * FROM once._metrics_of_tables()) AS s
      JOIN once._metric_names() AS k ON k.name = s.name COLLATE "C"
     WHERE s.value IS NOT NULL
     ORDER BY k.name COLLATE "C", s.labels
$$;
