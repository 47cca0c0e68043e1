-- SPDX-License-Identifier: PostgreSQL
-- once._store_many(...): stores the plain reports of a batch and returns which those are: of a row that is there, under its
-- fence, with an outcome that needs no second look, of a key of bucket 0 or of the batch's latest day. What it leaves is for
-- once._report_many, one by one. A batch that does not begin with a UUIDv7 is taken for one of bucket 0, as nearly all such are.
-- What stores are two functions, since a plan is of one table: bucket 0's, by its name, is the only one that is opened and locked.
-- All reports take their rows in one order, so that two batches over the same intents cannot deadlock: bucket 0, then the days, the
-- latest first; in each by scope and key. Of two reports on one intent the first is stored and the second is judged against it.
CREATE FUNCTION once._store_many(tenant text, scope text[], key text[], fence integer[], next_state once.state[],
    response_status integer[], response_body bytea[], response_headers jsonb[], result_type text[], result_id text[], error_code text[],
    error_message text[], redirect bytea[]) RETURNS integer[] LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    dated boolean := coalesce(key[1] LIKE '________-____-7%', false);
    stored integer[];
    first_bucket integer;
    last_bucket integer;
BEGIN
    IF NOT dated THEN
        stored := once._store_undated(tenant, scope, key, fence, next_state, response_status, response_body, response_headers,
                                      result_type, result_id, error_code, error_message, redirect);
        IF cardinality(stored) = cardinality(key) THEN
            RETURN stored;
        END IF;
    END IF;
    SELECT min(b.bucket), max(b.bucket) INTO first_bucket, last_bucket
      FROM (SELECT once._bucket(k) AS bucket FROM unnest(key) AS k OFFSET 0) AS b;
    IF dated AND first_bucket <= 0 THEN
        stored := once._store_undated(tenant, scope, key, fence, next_state, response_status, response_body, response_headers,
                                      result_type, result_id, error_code, error_message, redirect);
    END IF;
    IF last_bucket > 0 THEN
        stored := stored || once._store_of_day(last_bucket, tenant, scope, key, fence, next_state, response_status, response_body,
                                               response_headers, result_type, result_id, error_code, error_message, redirect);
    END IF;
    RETURN stored;
END $$;
