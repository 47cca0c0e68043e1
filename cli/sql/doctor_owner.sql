-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: who owns the contract and who may use it. By the catalogs alone, so any role can run it.
WITH owners AS (
    SELECT pg_get_userbyid(c.relowner) AS owner FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = to_regnamespace('once') AND c.relkind IN ('r', 'p')
    UNION SELECT pg_get_userbyid(p.proowner) FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace IN (to_regnamespace('once'), to_regnamespace('once_job'))
    UNION SELECT pg_get_userbyid(n.nspowner) FROM pg_catalog.pg_namespace AS n WHERE n.nspname IN ('once', 'once_job')
), roles AS (
    SELECT wanted.role_name, r.oid
      FROM unnest(ARRAY['once_app', 'once_tenant', 'once_relay', 'once_capture', 'once_consumer', 'once_keeper', 'once_support',
               'once_reader', 'once_admin']) AS wanted (role_name)
      LEFT JOIN pg_catalog.pg_roles AS r ON r.rolname = wanted.role_name
), opened AS (
    SELECT c.oid::regclass::text AS name, a.grantee, a.privilege_type, c.relkind
      FROM pg_catalog.pg_class AS c, LATERAL aclexplode(c.relacl) AS a
     WHERE c.relnamespace = to_regnamespace('once') AND c.relkind IN ('r', 'p', 'v', 'S') AND a.grantee <> c.relowner
    UNION ALL
    SELECT p.oid::regprocedure::text, a.grantee, a.privilege_type, 'f'
      FROM pg_catalog.pg_proc AS p, LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
     WHERE p.pronamespace IN (to_regnamespace('once'), to_regnamespace('once_job')) AND a.grantee <> p.proowner
)
SELECT 'one owner', CASE count(*) WHEN 1 THEN 'ok' ELSE 'failed' END, string_agg(owner, ', ' ORDER BY owner),
       'give everything in the schemas once and once_job to one role (ALTER ... OWNER TO): its functions run with their owner''s rights'
  FROM owners
UNION ALL
SELECT 'roles', CASE WHEN count(oid) = count(*) THEN 'ok' ELSE 'warning' END,
       coalesce('missing: ' || string_agg(role_name, ', ' ORDER BY role_name) FILTER (WHERE oid IS NULL), 'all there'),
       'let an administrator run CREATE ROLE name NOLOGIN for each, then run pgonce init again; or grant functions one by one, after'
       || ' every init that replaces them'
  FROM roles
UNION ALL
SELECT 'closed to PUBLIC', CASE count(*) WHEN 0 THEN 'ok' ELSE 'failed' END,
       coalesce('open: ' || left(string_agg(DISTINCT name, ', '), 200), 'yes'),
       'REVOKE ALL ON these FROM PUBLIC; pgonce init does it for functions'
  FROM opened WHERE grantee = 0
UNION ALL
SELECT 'closed tables', CASE WHEN count(*) = 0 THEN 'ok' WHEN bool_or(privilege_type <> 'SELECT') THEN 'failed' ELSE 'warning' END,
       coalesce('open: ' || left(string_agg(DISTINCT format('%s (%s to %s)', name, privilege_type, pg_get_userbyid(grantee)), ', '), 200),
           'only the owner accesses tables'),
       'REVOKE ALL ON these FROM the roles: they see every tenant, and no function checks what they write'
  FROM opened WHERE grantee <> 0 AND relkind IN ('r', 'p')
   AND (name, privilege_type, grantee) IS DISTINCT FROM
       ('once.outbox', 'SELECT', (SELECT r.oid FROM roles AS r WHERE r.role_name = 'once_capture'))
UNION ALL
-- Functions without a leading underscore may have been granted one by one, on purpose; the others are internal.
SELECT 'closed functions', CASE WHEN count(*) = 0 THEN 'ok' WHEN bool_or(name ~ '^once[.]_') THEN 'failed' ELSE 'warning' END,
       coalesce('open: ' || left(string_agg(DISTINCT format('%s to %s', name, pg_get_userbyid(grantee)), ', '), 200),
           'only the roles of the contract may execute a function'),
       format('REVOKE ALL ON ALL ROUTINES IN SCHEMA once, once_job FROM %s: grant it once_app, or single functions, instead; pgonce init'
              || ' does so, too, whenever it replaces the functions', string_agg(DISTINCT quote_ident(pg_get_userbyid(grantee)), ', '))
  FROM opened WHERE grantee <> 0 AND relkind = 'f' AND grantee NOT IN (SELECT r.oid FROM roles AS r WHERE r.oid IS NOT NULL)
