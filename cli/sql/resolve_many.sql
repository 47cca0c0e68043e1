-- SPDX-License-Identifier: PostgreSQL
-- One piece of many decisions. $1 scope, $2 state, $3 reason, $4 status, $5 body (hexadecimal digits), $6 headers; $7 tenant, $8 error,
-- $9 since, $10 until (each NULL: all); $11 a dry run?, $12 after which (NULL: from the beginning).
SELECT r.met, r.decided, r.skipped, r.next
  FROM once.resolve_many($1, $2, $3, $4::integer, response_body => decode($5, 'hex'), response_headers => $6::jsonb, tenant => $7,
           error => $8, since => $9::timestamptz, until => $10::timestamptz, dry_run => $11::boolean, after => $12) AS r
