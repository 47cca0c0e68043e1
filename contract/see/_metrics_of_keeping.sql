-- SPDX-License-Identifier: PostgreSQL
-- once._metrics_of_keeping(): samples for once.metrics: the keeper's progress, and what holds it up.
CREATE FUNCTION once._metrics_of_keeping() RETURNS TABLE (name text, labels jsonb, value double precision) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT f.name, jsonb_build_object('step', s.step), f.value
      FROM once.keeper_status() AS s
     CROSS JOIN LATERAL (VALUES ('pgonce_keeper_last_success_timestamp_seconds', date_part('epoch', s.last_success)),
                                ('pgonce_keeper_failing', coalesce((s.last_error_at > coalesce(s.last_success,
                                    '-infinity'))::integer, 0))) AS f (name, value)
     UNION ALL
    SELECT 'pgonce_retention_held', jsonb_build_object('what', h.what), count(*) FROM once.retention_held() AS h GROUP BY h.what
     UNION ALL
    SELECT 'pgonce_clock_held', NULL, (once._clock_held() IS NOT NULL)::integer
     UNION ALL
    SELECT 'pgonce_partitions_closing', NULL, count(*) FROM once.closing
     UNION ALL
    SELECT 'pgonce_partitions_ahead', jsonb_build_object('table', t.name),
           max(substr(c.relname, length(t.name) + 3)::integer) - floor(date_part('epoch', clock_timestamp()) / 86400)
      FROM (VALUES ('intent'), ('outbox')) AS t (name)
      JOIN pg_inherits AS h ON h.inhparent = to_regclass('once.' || t.name) JOIN pg_class AS c ON c.oid = h.inhrelid
     WHERE c.relname ~ ('^' || t.name || '_d[0-9]+$')
     GROUP BY t.name
     UNION ALL
    SELECT 'pgonce_contract_version', NULL, once.contract_version();
END $$;
