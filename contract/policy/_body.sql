-- SPDX-License-Identifier: PostgreSQL
-- once._body(tenant, scope, key, response_text, response_json, response_body): the bytes of an answer given as text or JSON, in UTF-8.
-- Raises 22023 if it is given in more than one way. Callers with bytes alone do not call it, so it costs them nothing.
CREATE FUNCTION once._body(tenant text, scope text, key text, response_text text, response_json jsonb, response_body bytea)
RETURNS bytea LANGUAGE plpgsql AS $$
BEGIN
    IF num_nonnulls(response_text, response_json, response_body) > 1 THEN
        PERFORM once._refuse_outcome(tenant, scope, key, 'the body of an answer is given in more than one way');
    END IF;
    RETURN once._body_of(response_text, response_json);
END $$;
