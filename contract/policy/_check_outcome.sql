-- SPDX-License-Identifier: PostgreSQL
-- once._check_outcome(tenant, scope, key, outcome): raises 22023 for an invalid status or invalid headers, and P4060 if a part of the
-- outcome is too large.
CREATE FUNCTION once._check_outcome(tenant text, scope text, key text, outcome once.outcome) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._refuse_outcome(tenant, scope, key, wrong)
       FROM once._wrong_outcome(outcome.response_status, outcome.response_headers) AS wrong WHERE wrong IS NOT NULL;
    PERFORM once._refuse('P4060', tenant, scope, key, part) FROM once._too_large(scope, outcome) AS part WHERE part IS NOT NULL;
END $$;
