-- SPDX-License-Identifier: PostgreSQL
-- once._is_trusted(tenant): whether the caller certainly may name any tenant (a login that has SET no role), and this node serves this
-- one. once._authorise decides about the others. Inlined; VOLATILE, as once._serves is.
CREATE FUNCTION once._is_trusted(tenant text) RETURNS boolean LANGUAGE sql AS $$
    SELECT once._serves(tenant) AND current_setting('role') = 'none' AND once._find_native()     -- a constant
       AND has_function_privilege(session_user, 'once.any_tenant()'::regprocedure, 'execute')
$$;
