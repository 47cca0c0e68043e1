-- SPDX-License-Identifier: PostgreSQL
-- The page /intent. $1 scope, $2 key, $3 tenant (NULL: ''), $4 not NULL: with the stored answer. Events come without their payloads.
WITH story AS MATERIALIZED (
    SELECT once.outline($1, $2, coalesce($3, ''), $4::text IS NOT NULL) AS doc
), base AS MATERIALIZED (
    SELECT s.doc, clock_timestamp() AS now, (s.doc->>'created_at')::timestamptz AS created_at,
           (s.doc->>'completed_at')::timestamptz AS completed_at
      FROM story AS s
), entry AS MATERIALIZED (
    SELECT t.nth, t.one, (t.one->>'at')::timestamptz AS at,
           CASE WHEN t.one->>'what' IN ('created', 'attempt', 'takeover', 'outcome', 'doubt') THEN 0
                WHEN t.one->>'what' = 'decision' THEN 1 WHEN t.one->>'what' IN ('archived', 'expires') THEN 3 ELSE 2 END AS lane
      FROM base AS b CROSS JOIN LATERAL jsonb_array_elements(b.doc->'timeline') WITH ORDINALITY AS t (one, nth)
), span AS MATERIALIZED (
    SELECT b.created_at AS first,
           greatest(CASE WHEN b.doc->>'state' = 'processing' THEN b.now END, b.created_at + interval '1 millisecond',
                    (SELECT max(e.at) FROM entry AS e WHERE e.one->>'what' <> 'expires')) AS last
      FROM base AS b
), placed AS MATERIALIZED (
    SELECT e.nth, e.one, e.at, e.lane,
           CASE WHEN e.at <= s.last THEN round((1000 * extract(epoch FROM e.at - s.first) / extract(epoch FROM s.last - s.first))::numeric)
           END AS own_place
      FROM entry AS e CROSS JOIN span AS s
), drawn AS MATERIALIZED (
    -- What has no time follows the entry that it results from.
    SELECT p.nth, p.one, p.at, p.lane,
           CASE WHEN p.at IS NOT NULL THEN p.own_place
                ELSE (SELECT q.own_place FROM placed AS q WHERE q.nth < p.nth AND q.own_place IS NOT NULL ORDER BY q.nth DESC LIMIT 1)
           END AS place
      FROM placed AS p
), lane AS MATERIALIZED (
    -- Only those with something in them; the first one always has the first attempt.
    SELECT d.lane, ('{attempts,decisions,events,retention}'::text[])[d.lane + 1] AS name, row_number() OVER (ORDER BY d.lane) AS nth
      FROM drawn AS d WHERE d.place IS NOT NULL GROUP BY d.lane
), attempt AS MATERIALIZED (
    SELECT a.at, a.fence, a.owner,
           coalesce((SELECT min(d.at) FROM drawn AS d WHERE d.at > a.at AND d.one->>'what' IN ('decision', 'takeover', 'outcome', 'doubt')),
                    lead(a.at) OVER (ORDER BY a.at), s.last) AS until
      FROM (SELECT b.created_at AS at, (d.one->>'fence')::integer AS fence, d.one->>'by' AS owner
              FROM base AS b LEFT JOIN drawn AS d ON d.one->>'what' = 'created'
             UNION ALL
            SELECT (d->>'at')::timestamptz, (d#>>'{after,fence}')::integer, d#>>'{after,owner}'
              FROM base AS b CROSS JOIN LATERAL jsonb_array_elements(b.doc->'decisions') AS d
             WHERE d->>'kind' IN ('takeover', 'retry')) AS a CROSS JOIN span AS s
)
SELECT CASE WHEN (b.doc->>'missing')::boolean
    THEN b.doc || jsonb_build_object('now', b.now, 'is', jsonb_build_object(b.doc->>'verdict', true))
    ELSE b.doc - 'response_body' || jsonb_build_object(
        'now', b.now,
        -- For a template, which knows no comparison.
        'is', jsonb_build_object(b.doc->>'state', true, b.doc->>'verdict', true),
        'decidable', b.doc->>'verdict' IN ('in_doubt', 'processing_stale'),
        'age_ms', floor(1000 * extract(epoch FROM b.now - b.created_at))::bigint,
        'took_ms', floor(1000 * extract(epoch FROM b.completed_at - b.created_at))::bigint,
        'lease_ms', floor(1000 * extract(epoch FROM (b.doc->>'lease_until')::timestamptz - b.now))::bigint,
        'trace_id', substr(b.doc->>'traceparent', 4, 32),
        'headers', (SELECT coalesce(jsonb_agg(jsonb_build_object('name', h.key, 'value', h.value #>> '{}') ORDER BY h.key), '[]')
                      FROM jsonb_each(CASE jsonb_typeof(b.doc->'response_headers') WHEN 'object' THEN b.doc->'response_headers' END) AS h),
        'body_asked', (b.doc->>'may_see_body')::boolean AND $4::text IS NOT NULL,
        'body', CASE WHEN b.doc->>'response_body' IS NOT NULL
                        THEN once.readable(decode(b.doc->>'response_body', 'base64')) END,
        'policy', (SELECT jsonb_build_object('scope', s.scope, 'own', s.own AND s.scope = $1::text, 'lease', s.lease,
                              'retention', s.retention, 'max_attempts', s.max_attempts, 'on_stale', s.on_stale, 'verify', s.verify,
                              'decides', jsonb_build_object(s.on_stale, true),
                              'response_bytes_max', s.response_bytes_max, 'event_bytes_max', s.event_bytes_max)
                     FROM once.scope_list() AS s WHERE s.scope IN ($1::text, '') ORDER BY s.scope DESC LIMIT 1),
        'timeline', (SELECT jsonb_agg(d.one || jsonb_build_object('place', d.place, 'x', 20 + round(d.place * 0.96), 'lane', d.lane,
                                'y', (SELECT 40 * l.nth - 10 FROM lane AS l WHERE l.lane = d.lane),
                                'age_ms', floor(1000 * extract(epoch FROM b.now - d.at))::bigint) ORDER BY d.nth)
                       FROM drawn AS d),
        'lanes', (SELECT jsonb_agg(jsonb_build_object('lane', l.lane, 'name', l.name, 'y', 40 * l.nth - 10) ORDER BY l.nth) FROM lane AS l),
        'picture', (SELECT jsonb_build_object('from', s.first, 'to', s.last, 'width', 1000,
                               'height', 20 + 40 * (SELECT count(*) FROM lane),
                               'spans', (SELECT jsonb_agg(jsonb_build_object('fence', a.fence, 'owner', a.owner, 'what', 'attempt',
                                                    'x', 20 + round((960 * extract(epoch FROM a.at - s.first)
                                                                     / extract(epoch FROM s.last - s.first))::numeric),
                                                    'width', greatest(round((960 * extract(epoch FROM a.until - a.at)
                                                                     / extract(epoch FROM s.last - s.first))::numeric), 2),
                                                    'y', 30) ORDER BY a.at) FROM attempt AS a))
                      FROM span AS s))
    END
  FROM base AS b
