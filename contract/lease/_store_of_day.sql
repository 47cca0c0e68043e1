-- SPDX-License-Identifier: PostgreSQL
-- once._store_of_day(day, ...): as once._store_undated, for the UUIDv7 keys of one day. One day only: where the bucket differs
-- from element to element, the executor chooses among the days' tables anew for each, which costs as much as the rest.
CREATE FUNCTION once._store_of_day(day integer, tenant text, scope text[], key text[], fence integer[], next_state once.state[],
    response_status integer[], response_body bytea[], response_headers jsonb[], result_type text[], result_id text[], error_code text[],
    error_message text[], redirect bytea[]) RETURNS integer[] LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored integer[];
BEGIN
    WITH changed AS (
        UPDATE once.intent AS i
           SET state = next_state[e.n], updated_at = now,
               lease_until = CASE WHEN next_state[e.n] = 'in_doubt' AND response_status[e.n] IS NULL THEN i.lease_until END,
               completed_at = CASE WHEN next_state[e.n] <> 'in_doubt' THEN now END,
               response_status = response_status[e.n], response_body = response_body[e.n],
               response_headers = response_headers[e.n], result_type = result_type[e.n], result_id = result_id[e.n],
               error_code = left(error_code[e.n], 255), error_message = left(error_message[e.n], 4096)
          FROM (SELECT u.n::integer AS n, (SELECT i.ctid FROM once.intent AS i
                                            WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[u.n] COLLATE "C"
                                              AND i.key = u.key COLLATE "C" AND i.bucket = day) AS address
                  FROM unnest(key) WITH ORDINALITY AS u (key, n)
                 WHERE redirect[u.n] IS NULL AND once._is_plain(response_status[u.n], response_body[u.n], response_headers[u.n],
                                                                 result_type[u.n], result_id[u.n])
                 ORDER BY scope[u.n] COLLATE "C", u.key COLLATE "C", u.n) AS e
         WHERE i.bucket = day AND i.ctid = e.address
           AND i.fence = fence[e.n] AND (i.state = 'processing' OR (i.state = 'in_doubt' AND next_state[e.n] <> 'in_doubt'))
        RETURNING e.n)
    SELECT array_agg(c.n) INTO stored FROM changed AS c;
    RETURN stored;
END $$;
