-- SPDX-License-Identifier: PostgreSQL
-- once._store_of_day(day, ...): once._store_undated for the UUIDv7 keys of one day. One day only: if the bucket differs between elements,
-- the executor selects the partition for each element again, which doubles the cost.
CREATE FUNCTION once._store_of_day(day integer, tenant text, scope text[], key text[], fence integer[], next_state once.state[],
    response_status integer[], response_body bytea[], response_headers jsonb[], result_type text[], result_id text[], error_code text[],
    error_message text[], redirect bytea[]) RETURNS integer[] LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored integer[];
BEGIN
    -- expand: store_reports(into => once.intent, bucket => day)
    RETURN stored;
END $$;
