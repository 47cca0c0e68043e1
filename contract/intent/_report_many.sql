-- SPDX-License-Identifier: PostgreSQL
-- once._report_many(...): reports of many attempts in one statement: the common core of complete_many and fail_many.
-- One statement for all that is plain; what it did not store goes through once._report, one by one, which says why.
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
    verdicts text[] := array_fill(NULL::text, ARRAY[size]);
    codes text[] := verdicts;
BEGIN
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
        IF (length(scope[n]) BETWEEN 1 AND 255) IS NOT TRUE THEN
            codes[n] := 'P4000';
        ELSIF (buckets[n] >= 0) IS NOT TRUE THEN
            codes[n] := 'P4001';
        ELSIF octet_length(response_body[n]) > 8192
              AND octet_length(response_body[n]) > (once._policy(scope[n])).response_bytes_max THEN
            codes[n] := 'P4060';
        ELSIF once._wrong_outcome(response_status[n], response_headers[n]) IS NOT NULL THEN
            codes[n] := '22023';
        ELSIF octet_length(redirect[n]) NOT BETWEEN 16 AND 64 THEN
            codes[n] := 'P4003';
        ELSE
            verdicts[n] := once._report(tenant, scope[n], key[n], buckets[n], fence[n], next_state[n],
                                        ROW(response_status[n], response_body[n], response_headers[n], result_type[n],
                                            result_id[n], error_code[n], error_message[n]), redirect[n]);
            IF verdicts[n] = 'refused' THEN
                codes[n] := refusal;
            END IF;
        END IF;
    END LOOP;
    RETURN QUERY SELECT u.ord::integer,
                        CASE WHEN u.ord = ANY (stored) THEN 'stored' ELSE coalesce(u.verdict, 'invalid') END, u.code,
                        coalesce((SELECT e.message FROM once.errors() AS e WHERE e.code = u.code COLLATE "C"),
                                 once._wrong_outcome(response_status[u.ord], response_headers[u.ord]))
                   FROM unnest(verdicts, codes) WITH ORDINALITY AS u (verdict, code, ord) ORDER BY u.ord;
END $$;
