-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: who owns the contract and who may use it. By the catalogs alone, so any role can run it.
WITH owners AS (
    SELECT pg_get_userbyid(c.relowner) AS owner FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = to_regnamespace('once') AND c.relkind IN ('r', 'p')
    UNION SELECT pg_get_userbyid(p.proowner) FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = to_regnamespace('once')
    UNION SELECT pg_get_userbyid(n.nspowner) FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'once'
), roles AS (
    SELECT wanted.role_name, r.oid, wanted.function_name
      FROM (VALUES ('once_app', 'begin'), ('once_tenant', 'begin'), ('once_relay', 'add_days'), ('once_keeper',
          'retire_day'),
                   ('once_reader', 'story'), ('once_admin', 'resolve')) AS wanted (role_name, function_name)
      LEFT JOIN pg_catalog.pg_roles AS r ON r.rolname = wanted.role_name
), open_tables AS (
    SELECT c.oid::regclass::text AS name
      FROM pg_catalog.pg_class AS c, LATERAL aclexplode(c.relacl) AS a
     WHERE c.relnamespace = to_regnamespace('once') AND c.relkind IN ('r', 'p', 'v', 'S') AND a.grantee = 0
), open_functions AS (
    SELECT p.oid::regprocedure::text AS name
      FROM pg_catalog.pg_proc AS p, LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
     WHERE p.pronamespace = to_regnamespace('once') AND a.grantee = 0
)
SELECT 'one owner', CASE count(*) WHEN 1 THEN 'ok' ELSE 'fail' END, string_agg(owner, ', ' ORDER BY owner),
       'give everything in schema once to one role (ALTER ... OWNER TO): its functions run with their owner''s rights'
  FROM owners
UNION ALL
SELECT 'roles', CASE WHEN count(oid) = count(*) THEN 'ok' ELSE 'warn' END,
       coalesce('missing: ' || string_agg(role_name, ', ' ORDER BY role_name) FILTER (WHERE oid IS NULL), 'all there'),
       'have an administrator run CREATE ROLE name NOLOGIN for each, then run pgonce init again; or grant functions one by one'
  FROM roles
UNION ALL
SELECT 'grants', CASE WHEN count(*) FILTER (WHERE NOT granted) = 0 THEN 'ok' ELSE 'fail' END,
       coalesce('not granted: ' || string_agg(role_name, ', ' ORDER BY role_name) FILTER (WHERE NOT granted),
           'as installed'),
       'run pgonce init as the owner of the contract'
  FROM (SELECT r.role_name, EXISTS (SELECT FROM pg_catalog.pg_proc AS p
                                     WHERE p.pronamespace = to_regnamespace('once') AND p.proname = r.function_name
                                       AND has_function_privilege(r.oid, p.oid, 'execute'))
                            AND has_schema_privilege(r.oid, 'once', 'usage') AS granted
          FROM roles AS r WHERE r.oid IS NOT NULL) AS checked
UNION ALL
SELECT 'closed to PUBLIC', CASE count(*) WHEN 0 THEN 'ok' ELSE 'fail' END,
       coalesce('open: ' || left(string_agg(name, ', ' ORDER BY name), 200), 'yes'),
       'REVOKE ALL ON these FROM PUBLIC; pgonce init does it for functions'
  FROM (SELECT name FROM open_tables UNION ALL SELECT name FROM open_functions) AS opened
