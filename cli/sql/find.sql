-- SPDX-License-Identifier: PostgreSQL
-- Intents by their marks, newest first, a JSON object each, and the slot of its tenant. $1 tenant, $2 scope, $3 state, $4 result_type,
-- $5 result_id, $6 event, $7 trace, $8 owner, $9 since, $10 until (each NULL: all), $11 how many.
SELECT json_build_object('tenant', f.tenant, 'scope', f.scope, 'key', f.key, 'state', f.state,
           'verdict', f.verdict, 'fence', f.fence, 'attempts', f.attempts, 'owner', f.owner, 'created_at', f.created_at,
           'updated_at', f.updated_at, 'lease_until', f.lease_until, 'result_type', f.result_type, 'result_id', f.result_id,
           'traceparent', f.traceparent, 'archived', f.archived,
           'age_ms', floor(extract(epoch FROM clock_timestamp() - f.created_at) * 1000)::bigint),
       once.slot_of(f.tenant)
  FROM once.find($1, $2, $3, $4, $5, $6::uuid, $7, $8, $9::timestamptz, $10::timestamptz, $11::integer) WITH ORDINALITY
       AS f (tenant, scope, key, state, verdict, fence, attempts, owner, created_at, updated_at, lease_until, result_type,
             result_id, traceparent, archived, row)
 ORDER BY f.row
