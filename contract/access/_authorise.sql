-- SPDX-License-Identifier: PostgreSQL
-- once._authorise(tenant): raises P4003 unless the caller may name this tenant, then P4097 unless this node serves it. NULL: all
-- tenants.
CREATE FUNCTION once._authorise(tenant text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._may_name(tenant);
    PERFORM once._refuse_slot(tenant, NULL, NULL);
END $$;
