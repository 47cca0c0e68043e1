-- SPDX-License-Identifier: PostgreSQL
-- Puts the intent in doubt; NULL: another attempt has claimed it or has finished, and is left alone.
-- spec: doubt
SELECT CASE WHEN c.verdict IN ('new_claim', 'processing_stale', 'retryable_failure') THEN once.fail(c.scope, c.key,
c.fence, NULL, c.error_code, c.error_message, response_status => c.status, tenant => c.tenant) END FROM (SELECT i.*,
s.verdict, s.fence FROM (SELECT $1::text AS scope, $2::text AS key, $3::text AS tenant, $4::bytea AS print, $5::text AS
traceparent, $6::text AS error_code, $7::text AS error_message, $8::integer AS status) AS i, LATERAL once.claim(i.scope,
i.key, i.print, tenant => i.tenant, traceparent => i.traceparent) AS s) AS c
-- end of spec
