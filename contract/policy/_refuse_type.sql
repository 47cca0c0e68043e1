-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_type(tenant, scope, key, given): raises 22023 for a response_body that is not bytea. That parameter takes any type, so
-- that PostgreSQL does not parse an untyped literal as bytea escapes. A function with this parameter checks its type first, in a
-- statement of its own: a type that the caller created may have a cast to bytea, or a check, which would run with the owner's rights.
CREATE FUNCTION once._refuse_type(tenant text, scope text, key text, given regtype) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._refuse_outcome(tenant, scope, key, format('response_body must be of type bytea, not %s', given));
END $$;
