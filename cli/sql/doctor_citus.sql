-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: Citus in this database. By the catalogs alone, so any role can run it.
SELECT 'citus', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce('Citus ' || max(e.extversion) || ' spreads tables of this database over nodes', 'not in this database'),
       'Citus does not commit the memory together with an effect on another node: keep the effect on the node that remembers its key'
  FROM pg_catalog.pg_extension AS e WHERE e.extname = 'citus'
