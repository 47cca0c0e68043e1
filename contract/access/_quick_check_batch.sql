-- SPDX-License-Identifier: PostgreSQL
-- once._quick_check_batch(tenant, size, dims...): once._quick_check for a batch: arrays of one length (array_dims of each), an ordinary
-- tenant that this node serves, a caller that may name any tenant. It accepts nothing invalid; what it cannot judge (a bound role, an
-- empty batch, anything that must be refused) goes to once._check_batch. Inlined; VOLATILE, as once._serves is; each function less saves
-- 2,000 instructions.
CREATE FUNCTION once._quick_check_batch(tenant text, size integer, VARIADIC dims text[]) RETURNS boolean LANGUAGE sql AS $$
    SELECT concat('[1:', size, ']') = ALL (dims) AND size <= 10000 AND octet_length(tenant) <= 255 AND once._serves(tenant)
       AND current_setting('role') = 'none' AND once._find_native()
       AND has_function_privilege(session_user, 'once.any_tenant()'::regprocedure, 'execute')
$$;
