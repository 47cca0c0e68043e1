-- SPDX-License-Identifier: PostgreSQL
-- POST /messages, one part of it. $1 action: retry, discard or replay; $2 kind, $3 relay, $4 consumer, $5 tenant, $6 topic, $7 event_type,
-- $8 error, $9 state (each NULL: any), $10 a JSON array of ids (NULL: all that match), $11 reason, $12 since and $13 force (of replay),
-- $14 after (next of the part before), $15 not NULL: a dry run. Commit each part; next NULL: done.
-- Each condition on a function that changes something names no column: so it is not called if that is false.
WITH listed AS MATERIALIZED (
    SELECT i.id, l.kind, l.holder, l.topic, l.state
      FROM jsonb_array_elements_text($10::jsonb) AS i (id)
     CROSS JOIN LATERAL once.parked_list($2, $3, $4, $5, $6, $7, $8, $9, id => i.id) AS l
     WHERE $1::text IN ('retry', 'discard')
), done AS MATERIALIZED (
    SELECT l.id, CASE WHEN $1::text = 'retry'
                      THEN once.parked_retry(l.id, $11, l.relay, l.consumer, l.tenant)
                      ELSE once.parked_discard(l.id, $11, l.relay, l.consumer, l.tenant) END AS was
      FROM (SELECT DISTINCT n.id, CASE WHEN n.kind = 'event' THEN $3::text END AS relay,
                   CASE WHEN n.kind = 'message' THEN n.holder END AS consumer, $5::text AS tenant FROM listed AS n) AS l
     WHERE $15::text IS NULL
), part AS MATERIALIZED (
    SELECT l.kind, l.holder, l.topic, l.state, CASE WHEN d.was = false THEN 'gone' END AS skipped, count(*) AS items, NULL AS next
      FROM listed AS l LEFT JOIN done AS d ON d.id = l.id GROUP BY 1, 2, 3, 4, 5
     UNION ALL
    SELECT m.met_kind, m.met_holder, m.met_topic, m.met_state, m.skipped, m.items, m.next
      FROM once.parked_retry_many($11, $2, $3, $4, $5, $6, $7, $8, $9, NULL, $15::text IS NOT NULL, after => $14) AS m
     WHERE $1::text = 'retry' AND $10::text IS NULL
     UNION ALL
    SELECT m.met_kind, m.met_holder, m.met_topic, m.met_state, m.skipped, m.items, m.next
      FROM once.parked_discard_many($11, $2, $3, $4, $5, $6, $7, $8, $9, NULL, $15::text IS NOT NULL, after => $14) AS m
     WHERE $1::text = 'discard' AND $10::text IS NULL
     UNION ALL
    SELECT 'event', $3, $6, 'passed', NULL, r.parked, NULL
      FROM once.parked_replay($3, $12::timestamptz, $6, $11, $13::text IS NOT NULL, $15::text IS NOT NULL) AS r (parked)
     WHERE $1::text = 'replay'
)
SELECT jsonb_build_object(
    'now', clock_timestamp(), 'action', $1::text, 'dry_run', $15::text IS NOT NULL, 'kind', $2::text, 'relay', $3::text,
    'consumer', $4::text, 'tenant', $5::text, 'topic', $6::text, 'event_type', $7::text, 'error', $8::text, 'state', $9::text,
    'ids', coalesce($10::jsonb, '[]'), 'reason', $11::text, 'since', $12::timestamptz, 'force', $13::text IS NOT NULL,
    'parts', (SELECT coalesce(jsonb_agg(to_jsonb(p) - 'next' ORDER BY p.kind, p.holder, p.topic, p.state, p.skipped NULLS FIRST), '[]')
                FROM part AS p WHERE p.items > 0),
    'items', (SELECT coalesce(sum(p.items), 0) FROM part AS p WHERE p.skipped IS NULL),
    'next', (SELECT max(p.next) FROM part AS p), 'done', (SELECT max(p.next) IS NULL FROM part AS p))
