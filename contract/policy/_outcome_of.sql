-- SPDX-License-Identifier: PostgreSQL
-- once._outcome_of(stored | verified): the outcome in an intent's row, or the one that a verify function found. Inlined.
CREATE FUNCTION once._outcome_of(stored once.intent) RETURNS once.outcome LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW(stored.response_status, stored.response_body, stored.response_headers, stored.result_type, stored.result_id,
               stored.error_code, stored.error_message)::once.outcome
$$;

CREATE FUNCTION once._outcome_of(verified once.verification) RETURNS once.outcome LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW(verified.response_status, verified.response_body, verified.response_headers, verified.result_type, verified.result_id,
               NULL, NULL)::once.outcome
$$;
