-- SPDX-License-Identifier: PostgreSQL
-- store_reports(into, bucket): stores the plain reports of a batch whose keys are of this bucket, in one statement, and sets `stored` to
-- their positions. It finds no row of another bucket, so the caller need not separate them. Rows are found by a look-up per element (a
-- scalar subquery: as a join with the batch, a plan made while the table was empty could search the index by part of its columns, and
-- would stay) and then updated by their address. If another session moves a row in between, the address finds nothing and once._report
-- looks again.
WITH changed AS (
    UPDATE {into} AS i
       SET state = next_state[e.n], updated_at = now,
           lease_until = CASE WHEN next_state[e.n] = 'in_doubt' AND response_status[e.n] IS NULL THEN i.lease_until END,
           completed_at = CASE WHEN next_state[e.n] <> 'in_doubt' THEN now END,
           response_status = response_status[e.n], response_body = response_body[e.n],
           response_headers = response_headers[e.n], result_type = result_type[e.n], result_id = result_id[e.n],
           error_code = left(error_code[e.n], 255), error_message = left(error_message[e.n], 4096)
      FROM (SELECT n, (SELECT i.ctid FROM {into} AS i
                        WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[n] COLLATE "C"
                          AND i.key = key[n] COLLATE "C" AND i.bucket = {bucket}) AS address
              FROM generate_series(1, cardinality(key)) AS n
             WHERE redirect[n] IS NULL AND once._is_plain(response_status[n], response_body[n], response_headers[n],
                                                           result_type[n], result_id[n])
             ORDER BY scope[n] COLLATE "C", key[n] COLLATE "C", n) AS e
     WHERE i.bucket = {bucket} AND i.ctid = e.address
       AND i.fence = fence[e.n] AND (i.state = 'processing' OR (i.state = 'in_doubt' AND next_state[e.n] <> 'in_doubt'))
    RETURNING e.n)
SELECT array_agg(c.n) INTO stored FROM changed AS c;
