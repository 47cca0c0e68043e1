-- SPDX-License-Identifier: PostgreSQL
-- once._metrics_of_tables(): samples for once.metrics: sizes, and conditions that slow down the whole database. A partition that is being
-- dropped meanwhile has no size, and is left out.
CREATE FUNCTION once._metrics_of_tables() RETURNS TABLE (name text, labels jsonb, value double precision) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH leaf AS MATERIALIZED (
        SELECT t.name AS of_table, substring(c.relname FROM '_d([0-9]+)$')::integer AS day,
               pg_total_relation_size(c.oid) AS bytes
          FROM (VALUES ('intent'), ('archive'), ('outbox'), ('decision'), ('parked_event'), ('parked_message')) AS t (name)
         CROSS JOIN LATERAL (SELECT to_regclass('once.' || t.name) AS oid
                              UNION ALL SELECT h.inhrelid FROM pg_inherits AS h WHERE h.inhparent = to_regclass('once.' || t.name)) AS m
          JOIN pg_class AS c ON c.oid = m.oid)
    SELECT 'pgonce_table_bytes', jsonb_build_object('table', l.of_table), sum(l.bytes)::double precision
      FROM leaf AS l GROUP BY l.of_table
     UNION ALL
    SELECT 'pgonce_partition_bytes', jsonb_build_object('table', l.of_table, 'day',
               CASE WHEN l.day = 0 THEN 'none' ELSE (date '1970-01-01' + l.day)::text END), l.bytes
      FROM leaf AS l WHERE l.day IS NOT NULL
     UNION ALL
    SELECT 'pgonce_oldest_transaction_seconds', NULL,
           coalesce(greatest(max(date_part('epoch', clock_timestamp() - a.started)), 0), 0)
      FROM (SELECT s.xact_start AS started FROM pg_stat_activity AS s WHERE s.pid <> pg_backend_pid()
               AND s.datname = current_database()
             UNION ALL
            SELECT x.prepared FROM pg_prepared_xacts AS x WHERE x.database = current_database()) AS a
     UNION ALL
    SELECT 'pgonce_xid_age', NULL, age(d.datfrozenxid) FROM pg_database AS d WHERE d.datname = current_database();
END $$;
