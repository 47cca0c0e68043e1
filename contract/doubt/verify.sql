-- SPDX-License-Identifier: PostgreSQL
-- once.verify(scope, key, tenant): asks the scope's verify function whether the effect of this intent happened, and changes nothing: for
-- operators, before once.resolve. NULL if the scope has no verify function; an exception of the function is raised to the caller. Raises
-- P4000, P4001, P4003.
CREATE FUNCTION once.verify(scope text, key text, tenant text DEFAULT '') RETURNS once.verification
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    policy once.scope := once._policy(scope);
BEGIN
    PERFORM once._check(tenant, scope, key, once._bucket(key), E'\\x00000000000000000000000000000000');
    IF policy.verify IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN once._verify(policy, tenant, scope, key);
END $$;
