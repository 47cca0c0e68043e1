-- SPDX-License-Identifier: PostgreSQL
-- once._is_trusted(): whether the caller certainly may name any tenant: a login that has SET no role. once._authorise decides about the
-- others. Inlined.
CREATE FUNCTION once._is_trusted() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT current_setting('role') = 'none' AND once._find_native()     -- a constant
       AND has_function_privilege(session_user, 'once.any_tenant()'::regprocedure, 'execute')
$$;
