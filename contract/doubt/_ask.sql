-- SPDX-License-Identifier: PostgreSQL
-- once._ask(policy, tenant, scope, key): once._verify for recovery, and for intents that are in doubt already: if the verify function
-- raises, the answer is 'unknown' and failure contains the error, so that the other intents are still checked.
CREATE FUNCTION once._ask(policy once.scope, tenant text, scope text, key text, OUT verified once.verification, OUT failure text)
LANGUAGE plpgsql AS $$
DECLARE
    code text;
    said text;
BEGIN
    verified := once._verify(policy, tenant, scope, key);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, said = MESSAGE_TEXT;
    verified.answer := 'unknown';
    failure := left(format('verify raised %s: %s', code, said), 500);
END $$;
