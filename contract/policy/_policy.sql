-- SPDX-License-Identifier: PostgreSQL
-- once._policy(scope): the policy of a scope: its own row, or the default row ''. The table is tiny: both rows are on one page.
CREATE FUNCTION once._policy(scope text) RETURNS once.scope LANGUAGE plpgsql STABLE AS $$
DECLARE
    policy once.scope;
BEGIN
    -- '' sorts before every other name.
    SELECT p.* INTO STRICT policy FROM once.scope AS p WHERE p.scope IN ('', _policy.scope COLLATE "C") ORDER BY p.scope DESC LIMIT 1;
    RETURN policy;
END $$;
