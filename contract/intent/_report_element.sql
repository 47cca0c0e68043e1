-- SPDX-License-Identifier: PostgreSQL
-- once._report_element(...): one report of a batch, as complete_many and fail_many return it: what once.complete and once.fail raise
-- is a verdict here.
CREATE FUNCTION once._report_element(refusal text, tenant text, scope text, key text, bucket integer, fence integer, next_state once.state,
    outcome once.outcome, redirect bytea, OUT verdict text, OUT refused_code text, OUT refused_message text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    IF (length(scope) BETWEEN 1 AND 255) IS NOT TRUE THEN
        refused_code := 'P4000';
    ELSIF (bucket >= 0) IS NOT TRUE THEN
        refused_code := 'P4001';
    ELSIF octet_length(outcome.response_body) > 8192
          AND octet_length(outcome.response_body) > (once._policy(scope)).response_bytes_max THEN
        refused_code := 'P4060';
    ELSIF NOT once._is_plain(outcome.response_status, NULL, outcome.response_headers)
          AND once._wrong_outcome(outcome.response_status, outcome.response_headers) IS NOT NULL THEN
        refused_code := '22023';
    ELSIF octet_length(redirect) NOT BETWEEN 16 AND 64 THEN
        refused_code := 'P4003';
    ELSE
        verdict := once._report(tenant, scope, key, bucket, fence, next_state, outcome, redirect);
        IF verdict <> 'refused' THEN
            RETURN;
        END IF;
        refused_code := refusal;
    END IF;
    verdict := coalesce(verdict, 'invalid');
    refused_message := coalesce((SELECT e.message FROM once.errors() AS e WHERE e.code = refused_code COLLATE "C"),
        once._wrong_outcome(outcome.response_status, outcome.response_headers));
END $$;
