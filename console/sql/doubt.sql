-- SPDX-License-Identifier: PostgreSQL
-- The page /doubt. $1 scope, $2 key, $3 tenant (NULL: ''). The form sends fence and state back: see decide.sql.
WITH story AS MATERIALIZED (
    SELECT once.outline($1, $2, coalesce($3, '')) AS doc
), base AS MATERIALIZED (
    SELECT s.doc, clock_timestamp() AS now, (s.doc->>'created_at')::timestamptz AS created_at,
           s.doc->>'verdict' IN ('in_doubt', 'processing_stale', 'retryable_failure') AS decidable
      FROM story AS s
)
SELECT CASE WHEN (b.doc->>'missing')::boolean
    THEN b.doc || jsonb_build_object('now', b.now, 'is', jsonb_build_object(b.doc->>'verdict', true))
    ELSE b.doc - '{response_body,events,may_see_body}'::text[] || jsonb_build_object(
        'now', b.now, 'decidable', b.decidable,
        -- For a template, which knows no comparison.
        'is', jsonb_build_object(b.doc->>'state', true, b.doc->>'verdict', true),
        'age_ms', floor(1000 * extract(epoch FROM b.now - b.created_at))::bigint,
        'lease_ms', floor(1000 * extract(epoch FROM (b.doc->>'lease_until')::timestamptz - b.now))::bigint,
        'trace_id', substr(b.doc->>'traceparent', 4, 32),
        'policy', (SELECT jsonb_build_object('scope', s.scope, 'own', s.own AND s.scope = $1::text, 'lease', s.lease,
                              'retention', s.retention, 'max_attempts', s.max_attempts, 'on_stale', s.on_stale, 'verify', s.verify,
                              'decides', jsonb_build_object(s.on_stale, true),
                              'response_bytes_max', s.response_bytes_max, 'event_bytes_max', s.event_bytes_max)
                     FROM once.scope_list() AS s WHERE s.scope IN ($1::text, '') ORDER BY s.scope DESC LIMIT 1),
        'verify', (SELECT jsonb_build_object('answer', a.answer, 'response_status', a.response_status,
                              'response_bytes', octet_length(a.response_body), 'text', once.readable(a.response_body)->>'text',
                              'result_type', a.result_type, 'result_id', a.result_id, 'error', a.failure)
                     FROM once.ask($1, $2, coalesce($3, '')) AS a WHERE b.decidable AND a.answer IS NOT NULL),
        'decided', (SELECT d.one FROM jsonb_array_elements(b.doc->'decisions') WITH ORDINALITY AS d (one, nth)
                     WHERE NOT b.decidable AND d.one->>'kind' NOT IN ('takeover', 'retry') ORDER BY d.nth DESC LIMIT 1))
    END
  FROM base AS b
