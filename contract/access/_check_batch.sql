-- SPDX-License-Identifier: PostgreSQL
-- once._check_batch(tenant, sizes): raises if a batch as a whole is invalid: the tenant, arrays of unequal length, too many elements. It
-- does not check elements: each gets its own verdict. A claim holds one lock per element until its transaction ends.
CREATE FUNCTION once._check_batch(tenant text, VARIADIC sizes integer[]) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._check_tenant(tenant, NULL, NULL);
    PERFORM once._refuse_slot(tenant, NULL, NULL);
    RETURN once._check_sizes(VARIADIC sizes);
END $$;
