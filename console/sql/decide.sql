-- SPDX-License-Identifier: PostgreSQL
-- POST /doubt. $1 scope, $2 key, $3 tenant (NULL: ''), $4 fence and $5 state that the form showed, $6 the decision: happened, absent,
-- never or leave, $7 status, $8 body, $9 result_type, $10 result_id (of happened alone), $11 reason, $12 not NULL: a dry run.
WITH given AS MATERIALIZED (
    SELECT CASE $6::text WHEN 'happened' THEN 'succeeded' WHEN 'absent' THEN 'failed_retryable'
                WHEN 'never' THEN 'failed_final' END AS state,
           $6::text = 'happened' AS has_answer
), result AS MATERIALIZED (
    SELECT once.resolve_seen($1, $2, $4::integer, $5, coalesce(g.state, $6), $11, CASE WHEN g.has_answer THEN $7::integer END,
               CASE WHEN g.has_answer THEN $8 END, CASE WHEN g.has_answer THEN $9 END, CASE WHEN g.has_answer THEN $10 END,
               coalesce($3, ''), $12::text IS NOT NULL) AS doc
      FROM given AS g WHERE $6::text IS DISTINCT FROM 'leave'
)
SELECT jsonb_build_object('decided', false, 'why', NULL, 'first', NULL, 'fence', $4::integer, 'state', $5::text)
    || coalesce((SELECT r.doc FROM result AS r), '{}')
    || jsonb_build_object('now', clock_timestamp(), 'dry_run', $12::text IS NOT NULL, 'decision', $6::text, 'from', $5::text,
           'to', coalesce(g.state, $5), 'tenant', coalesce($3, ''), 'scope', $1::text, 'key', $2::text, 'seen_fence', $4::integer,
           'seen_state', $5::text, 'reason', $11::text, 'status', CASE WHEN g.has_answer THEN $7::integer END,
           'body_bytes', CASE WHEN g.has_answer THEN octet_length($8::text) END, 'result_type', CASE WHEN g.has_answer THEN $9::text END,
           'result_id', CASE WHEN g.has_answer THEN $10::text END)
  FROM given AS g
