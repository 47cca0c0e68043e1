-- SPDX-License-Identifier: PostgreSQL
-- once._store_many(stored, ...): stores the plain reports of a batch and returns their positions: the row exists under this fence, the
-- outcome needs no second check, and the key is of bucket 0 or of the batch's latest day. once._report_many handles the rest one by one.
-- stored: the positions that the caller has stored, of bucket 0, or of a batch of one day; NULL: it has not tried. A batch whose first key
-- is not a UUIDv7 is first treated as one of bucket 0, which is nearly always right. The two functions that store are separate because each
-- plan is for one table: that of bucket 0, which is named, is the only one that it opens and locks. All reports take their rows in one
-- order, so that two batches over the same intents cannot deadlock: bucket 0, then the days, the latest first; within each by scope and
-- key. Of two reports on one intent the first is stored, and the second is compared with it.
CREATE FUNCTION once._store_many(stored integer[], tenant text, scope text[], key text[], fence integer[], next_state once.state[],
    response_status integer[], response_body bytea[], response_headers jsonb[], result_type text[], result_id text[], error_code text[],
    error_message text[], redirect bytea[]) RETURNS integer[] LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    dated boolean := coalesce(key[1] LIKE '________-____-7%', false);
    first_bucket integer;
    last_bucket integer;
BEGIN
    IF dated AND stored IS NOT NULL THEN        -- all are of one day
        RETURN stored;
    END IF;
    IF NOT dated AND stored IS NULL THEN
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
