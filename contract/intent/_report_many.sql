-- SPDX-License-Identifier: PostgreSQL
-- once._report_many(...): reports of many attempts in one statement: the common core of complete_many and fail_many.
-- One element alone is a call of once._report, which costs less than the statement for many. Else one statement for all that is plain;
-- what it did not store goes through once._report, one by one, which says why.
-- Rows are found by a look-up per element (LIMIT: see once.claim_many) and then updated by their address: joined to the
-- batch by its key, a plan that was made while a partition was empty searches the index by tenant alone and stays so. If
-- a row moves in between, because somebody else has changed it, the address leads nowhere and once._report looks again.
CREATE FUNCTION once._report_many(refusal text, scope text[], key text[], fence integer[], next_state once.state[],
    response_status integer[], response_body bytea[], response_headers jsonb[], result_type text[], result_id text[], error_code text[],
    error_message text[], tenant text, redirect bytea[] DEFAULT NULL)
RETURNS TABLE (ord integer, verdict text, refused_code text, refused_message text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    buckets integer[];
    first_bucket integer;
    last_bucket integer;
    size integer := once._length(key, 0);
    n integer;
    stored integer[];
    told record;
    verdicts text[] := array_fill(NULL::text, ARRAY[size]);
    codes text[] := verdicts;
    messages text[] := verdicts;
BEGIN
    IF size = 1 THEN
        RETURN QUERY SELECT 1, r.*
          FROM once._report_element(refusal, tenant, scope[1], key[1], once._bucket(key[1]), fence[1], next_state[1],
                                    ROW(response_status[1], response_body[1], response_headers[1], result_type[1], result_id[1],
                                        error_code[1], error_message[1]), redirect[1]) AS r;
        RETURN;
    END IF;
    -- A range that is known when the look-up starts, so that only the leaves of this batch are opened.
    SELECT array_agg(b.bucket ORDER BY b.ord), min(b.bucket), max(b.bucket) INTO buckets, first_bucket, last_bucket
      FROM (SELECT u.ord, once._bucket(u.key) AS bucket FROM unnest(key) WITH ORDINALITY AS u (key, ord)) AS b;
    -- In the order of their keys, so that two batches over the same intents cannot deadlock; of two reports on one
    -- intent the first is stored and the second is judged against it.
    WITH changed AS (
        UPDATE once.intent AS i
           SET state = e.next_state, updated_at = e.now,
               lease_until = CASE WHEN e.next_state = 'in_doubt' AND e.response_status IS NULL THEN i.lease_until END,
               completed_at = CASE WHEN e.next_state <> 'in_doubt' THEN e.now END,
               response_status = e.response_status, response_body = e.response_body,
               response_headers = e.response_headers, result_type = e.result_type, result_id = e.result_id,
               error_code = e.error_code, error_message = e.error_message
          FROM (SELECT u.*, clock_timestamp() AS now, a.address
                  FROM unnest(scope, key, buckets, fence, next_state, response_status, response_body, response_headers,
                              result_type, result_id, error_code, error_message, redirect)
                       WITH ORDINALITY AS u (scope, key, bucket, fence, next_state, response_status, response_body,
                                             response_headers, result_type, result_id, error_code, error_message, redirect, ord),
                       LATERAL (SELECT i.ctid AS address FROM once.intent AS i
                                 WHERE i.tenant = tenant COLLATE "C" AND i.scope = u.scope COLLATE "C"
                                   AND i.key = u.key COLLATE "C" AND i.bucket = u.bucket
                                   AND i.bucket BETWEEN first_bucket AND last_bucket LIMIT 1) AS a
                 WHERE (CASE WHEN u.redirect IS NULL THEN octet_length(u.response_body) ELSE 8193 END > 8192) IS NOT TRUE
                   -- Not IS NULL, which the planner takes for rare: it would expect a row, and search.
                   AND coalesce(once._wrong_outcome(u.response_status, u.response_headers) = '', true)
                 ORDER BY u.scope COLLATE "C", u.key COLLATE "C", u.ord) AS e
         WHERE i.bucket = e.bucket AND i.ctid = e.address AND i.bucket BETWEEN first_bucket AND last_bucket
           AND i.fence = e.fence AND (i.state = 'processing' OR (i.state = 'in_doubt' AND e.next_state <> 'in_doubt'))
        RETURNING e.ord)
    SELECT array_agg(c.ord) INTO stored FROM changed AS c;

    IF cardinality(stored) = size THEN
        RETURN QUERY SELECT g.ord, 'stored', NULL, NULL FROM generate_series(1, size) AS g (ord);
        RETURN;
    END IF;
    -- The rest, in the same order.
    FOR n IN SELECT u.ord FROM unnest(scope, key) WITH ORDINALITY AS u (scope, key, ord)
              WHERE (u.ord = ANY (stored)) IS NOT TRUE
              ORDER BY u.scope COLLATE "C", u.key COLLATE "C", u.ord LOOP
        told := once._report_element(refusal, tenant, scope[n], key[n], buckets[n], fence[n], next_state[n],
                                     ROW(response_status[n], response_body[n], response_headers[n], result_type[n], result_id[n],
                                         error_code[n], error_message[n]), redirect[n]);
        verdicts[n] := told.verdict;
        codes[n] := told.refused_code;
        messages[n] := told.refused_message;
    END LOOP;
    RETURN QUERY SELECT u.ord::integer, coalesce(u.verdict, 'stored'), u.code, u.message
                   FROM unnest(verdicts, codes, messages) WITH ORDINALITY AS u (verdict, code, message, ord) ORDER BY u.ord;
END $$;
