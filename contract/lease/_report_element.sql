-- SPDX-License-Identifier: PostgreSQL
-- once._report_element(...): one report of a batch, as complete_many and fail_many return it: an error of once.complete or once.fail
-- becomes a verdict here.
CREATE FUNCTION once._report_element(refusal text, tenant text, scope text, key text, bucket integer, fence integer, next_state once.state,
    outcome once.outcome, redirect bytea, OUT verdict text, OUT refused_code text, OUT refused_message text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    IF (length(scope) BETWEEN 1 AND 255) IS NOT TRUE THEN
        refused_code := 'P4000';
    ELSIF (bucket >= 0) IS NOT TRUE THEN
        refused_code := 'P4001';
    ELSIF NOT once._is_plain(outcome.response_status, outcome.response_body, outcome.response_headers, outcome.result_type,
                             outcome.result_id) THEN
        refused_code := CASE WHEN once._wrong_outcome(outcome.response_status, outcome.response_headers) IS NOT NULL THEN '22023'
                             WHEN once._too_large(scope, outcome) IS NOT NULL THEN 'P4060' END;
    END IF;
    IF refused_code IS NOT NULL THEN
        NULL;
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
