-- SPDX-License-Identifier: PostgreSQL
-- What there is of pgonce_native: which version this server has ("" for none), which one this database has, whether its
-- functions are here (a schema of that name may be anybody's, a function in C only a superuser's), and whether this role may
-- install it.
SELECT coalesce((SELECT a.default_version FROM pg_catalog.pg_available_extensions AS a WHERE a.name = 'pgonce_native'), '') AS available,
       coalesce((SELECT e.extversion FROM pg_catalog.pg_extension AS e WHERE e.extname = 'pgonce_native'), '') AS installed,
       EXISTS (SELECT FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_language AS l ON l.oid = p.prolang
                WHERE p.oid = to_regprocedure('once_native.load()') AND l.lanname = 'c') AS has_functions,
       (SELECT r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user) AS may
