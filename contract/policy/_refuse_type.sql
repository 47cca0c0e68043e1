-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_type(tenant, scope, key, given): raises 22023 for a response_body that is not of type bytea. That parameter takes any
-- type, so that PostgreSQL reads no untyped literal as bytea's escapes. Those who have it look at its type before anything else,
-- in a statement of its own: a type of the caller's may have a cast to bytea, or a check, which would run with the owner's rights.
CREATE FUNCTION once._refuse_type(tenant text, scope text, key text, given regtype) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._refuse_outcome(tenant, scope, key, format('response_body is bytes, of type bytea, and this is of type %s', given));
END $$;
