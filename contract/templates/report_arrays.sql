-- SPDX-License-Identifier: PostgreSQL
-- report_arrays(dims, lengths): checks the arrays of a batch of reports, and converts their bodies to bytes. dims and lengths are those
-- of the arrays that only once.complete_many or only once.fail_many has.
IF once._quick_check_batch(tenant, size, dims, array_dims(scope), array_dims(fence),
        CASE WHEN response_status IS NULL THEN dims ELSE array_dims(response_status) END,
        CASE WHEN response_text IS NULL THEN dims ELSE array_dims(response_text) END,
        CASE WHEN response_json IS NULL THEN dims ELSE array_dims(response_json) END,
        CASE WHEN response_body IS NULL THEN dims ELSE array_dims(response_body) END,
        CASE WHEN response_headers IS NULL THEN dims ELSE array_dims(response_headers) END,
        {dims}) IS NOT TRUE THEN
    absent := coalesce(size, 0);
    size := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0), once._length(fence, 0),
        once._length(response_status, absent), once._length(response_text, absent), once._length(response_json, absent),
        once._length(response_body, absent), once._length(response_headers, absent), {lengths});
END IF;
IF pg_typeof(response_body) <> 'bytea[]'::regtype THEN        -- alone and first: see once._refuse_type
    PERFORM once._refuse_type(tenant, NULL, NULL, pg_typeof(response_body));
END IF;
IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
    response_body := once._bodies(response_text, response_json, response_body);
END IF;
