-- SPDX-License-Identifier: PostgreSQL
-- once._check_outcome(tenant, scope, key, outcome): raises what is wrong with an outcome: 22023 for a status or
-- headers that are none, P4060 where the body is larger than the scope allows.
CREATE FUNCTION once._check_outcome(tenant text, scope text, key text, outcome once.outcome) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bytes_max integer;
BEGIN
    PERFORM once._refuse_outcome(tenant, scope, key, wrong)
       FROM once._wrong_outcome(outcome.response_status, outcome.response_headers) AS wrong WHERE wrong IS NOT NULL;
    IF octet_length(outcome.response_body) > 8192 THEN
        bytes_max := (once._policy(scope)).response_bytes_max;
        IF octet_length(outcome.response_body) > bytes_max THEN
            PERFORM once._refuse('P4060', tenant, scope, key, format('%s bytes, at most %s',
                octet_length(outcome.response_body), bytes_max));
        END IF;
    END IF;
END $$;
