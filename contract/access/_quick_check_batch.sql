-- SPDX-License-Identifier: PostgreSQL
-- once._quick_check_batch(tenant, size, dims...): as once._quick_check, of a batch: arrays of one length (array_dims of each), a
-- tenant as nearly all are, a caller who may name any tenant. It lets nothing wrong through; what it does not know (a
-- bound role, an empty batch, whatever is to be refused) is left to once._check_batch. Inlined, for which it must be no
-- more than STABLE; each function that it does without saves 2,000 instructions.
CREATE FUNCTION once._quick_check_batch(tenant text, size integer, VARIADIC dims text[]) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT '[1:' || size::text || ']' = ALL (dims) AND size <= 10000 AND octet_length(tenant) <= 255
       AND current_setting('role') = 'none' AND once._find_native()
       AND has_function_privilege(session_user, 'once.any_tenant()'::regprocedure, 'execute')
$$;
