-- SPDX-License-Identifier: PostgreSQL
-- once._store_undated(...): stores the plain reports of a batch whose keys are of bucket 0, in that bucket's table by name, and returns
-- their positions.
CREATE FUNCTION once._store_undated(tenant text, scope text[], key text[], fence integer[], next_state once.state[],
    response_status integer[], response_body bytea[], response_headers jsonb[], result_type text[], result_id text[], error_code text[],
    error_message text[], redirect bytea[]) RETURNS integer[] LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored integer[];
BEGIN
    -- expand: store_reports(into => once.intent_d0, bucket => 0)
    RETURN stored;
END $$;
