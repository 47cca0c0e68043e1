-- SPDX-License-Identifier: PostgreSQL
-- What there is of a schema "once". By the catalogs alone, since the role may lack every right on it.
SELECT n.oid IS NOT NULL AS schema_exists,
       c.oid IS NOT NULL AS record_exists,
       EXISTS (SELECT FROM pg_catalog.pg_extension AS e WHERE e.extname = 'pgonce') AS is_extension,
       pg_catalog.current_setting('server_version_num') AS server_version,
       pg_catalog.current_database() AS database,
       current_user AS role,
       pg_catalog.pg_get_userbyid(n.nspowner) AS owner,
       coalesce(pg_catalog.has_schema_privilege(n.oid, 'usage') AND pg_catalog.has_table_privilege(c.oid, 'select'),
           false) AS readable
  FROM (VALUES (1)) AS one (row)
  LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = 'once'
  LEFT JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = 'migration' AND c.relkind = 'r'
