-- SPDX-License-Identifier: PostgreSQL
-- The function with that name for one once.message, as the session's search_path finds it. If it is missing, name is NULL and
-- others lists the other functions with that name.
SELECT CASE WHEN p.oid IS NOT NULL THEN format('%I.%I', n.nspname, p.proname) END AS name,
       p.prokind = 'f' AS is_function, p.proretset AS is_set,
       has_function_privilege(p.oid, 'execute') AND has_schema_privilege(n.oid, 'usage') AS allowed,
       (SELECT string_agg(o.oid::regprocedure::text, ', ') FROM pg_proc AS o
         WHERE p.oid IS NULL AND o.oid = ANY (ARRAY[to_regproc($1::text)::oid])) AS others,
       current_setting('server_encoding') AS encoding, current_user::text AS role
  FROM (SELECT to_regprocedure($1::text || '(once.message)')::oid) AS named (oid)
  LEFT JOIN pg_proc AS p ON p.oid = named.oid
  LEFT JOIN pg_namespace AS n ON n.oid = p.pronamespace
