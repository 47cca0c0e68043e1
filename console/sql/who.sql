-- SPDX-License-Identifier: PostgreSQL
-- What the console shows about its connection; once for each. may_decide: the role may call what its forms call.
SELECT json_build_object('database', current_database(), 'role', session_user,
    'may_decide', (SELECT coalesce(bool_or(has_function_privilege(p.oid, 'EXECUTE')), false) FROM pg_proc AS p
                    WHERE p.pronamespace = to_regnamespace('once') AND p.proname = 'resolve'))
