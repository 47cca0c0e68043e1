-- SPDX-License-Identifier: PostgreSQL
-- outcome_arguments(): the first steps of once.finish and once.finish_new: converts the body, which has three forms, to bytes, and
-- normalises the trace.
IF pg_typeof(response_body) <> 'bytea'::regtype THEN        -- alone and first: see once._refuse_type
    PERFORM once._refuse_type(tenant, scope, key, pg_typeof(response_body));
END IF;
IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
    IF (response_text IS NULL OR response_json IS NULL) AND response_body IS NULL THEN
        response_body := once._body_of(response_text, response_json);
    ELSE
        response_body := once._body(tenant, scope, key, response_text, response_json, response_body);
    END IF;
END IF;
IF traceparent IS NOT NULL THEN
    traceparent := once._trace(traceparent);
END IF;
