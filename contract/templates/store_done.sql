-- SPDX-License-Identifier: PostgreSQL
-- store_done(into, bucket): store_reports for outcomes that all succeed. In the caller, because a further function and its arguments
-- cost as much as the statement's start.
WITH changed AS (
    UPDATE {into} AS i
       SET state = 'succeeded', updated_at = now, completed_at = now, lease_until = NULL, response_status = response_status[e.n],
           response_body = response_body[e.n], response_headers = response_headers[e.n], result_type = result_type[e.n],
           result_id = result_id[e.n], error_code = NULL, error_message = NULL
      FROM (SELECT n, (SELECT i.ctid FROM {into} AS i
                        WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[n] COLLATE "C"
                          AND i.key = key[n] COLLATE "C" AND i.bucket = {bucket}) AS address
              FROM generate_series(1, size) AS n
             WHERE once._is_plain(response_status[n], response_body[n], response_headers[n], result_type[n], result_id[n])
             ORDER BY scope[n] COLLATE "C", key[n] COLLATE "C", n) AS e
     WHERE i.bucket = {bucket} AND i.ctid = e.address AND i.fence = fence[e.n] AND i.state IN ('processing', 'in_doubt')
    RETURNING e.n)
SELECT coalesce(array_agg(c.n), '{}') INTO stored FROM changed AS c;
