-- SPDX-License-Identifier: PostgreSQL
-- once._timeline(stored, archived, expires_at, decisions, events): the history of an intent, in order, for once.story: an array of {at,
-- what, by, fence, text}; what is one of created, attempt, takeover, doubt, decision, outcome, event, delivered, waiting, parked, dead,
-- archived, expires. at is NULL if the time is unknown (a delivery leaves only the relay's progress); such an entry follows the one that
-- it results from.
CREATE FUNCTION once._timeline(stored once.intent, archived boolean, expires_at timestamptz, decisions jsonb, events jsonb)
RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT jsonb_agg(jsonb_build_object('at', t.at, 'what', t.what, 'by', t.by, 'fence', t.fence, 'text', t.text)
                             ORDER BY t.place, t.rank, t.at, t.text)
      FROM (SELECT stored.created_at AS at, stored.created_at AS place, 1 AS rank, 'created' AS what,
                   first.facts->>'owner' AS by, (first.facts->>'fence')::integer AS fence, 'the first attempt' AS text
              FROM (SELECT coalesce((SELECT d->'before' FROM jsonb_array_elements(decisions) AS d
                                      WHERE d#>>'{before,attempts}' = '1' AND (d->>'at')::timestamptz >= stored.created_at LIMIT 1),
                                    CASE WHEN stored.attempts <= 1 THEN once._summary(stored) END) AS facts) AS first
             UNION ALL
            SELECT (d->>'at')::timestamptz, (d->>'at')::timestamptz, 3,
                   CASE d->>'kind' WHEN 'takeover' THEN 'takeover' WHEN 'retry' THEN 'attempt' ELSE 'decision' END,
                   CASE WHEN d->>'kind' IN ('takeover', 'retry') THEN coalesce(d#>>'{after,owner}', d->>'by')
                        ELSE d->>'by' END,
                   (d->>'fence')::integer,
                   CASE WHEN d->>'kind' IN ('takeover', 'retry') THEN d->>'reason'
                        ELSE format('%s -> %s: %s', d->>'from', d->>'to', d->>'reason') END
              FROM jsonb_array_elements(decisions) AS d
             UNION ALL
            -- A takeover is recorded a moment after the row's time.
            SELECT stored.updated_at, greatest(stored.updated_at, (SELECT max((d->>'at')::timestamptz)
                                                                     FROM jsonb_array_elements(decisions) AS d)), 4, 'attempt',
                   stored.owner, stored.fence,
                   format('the last sign of attempt %s; its lease %s %s', stored.attempts,
                          CASE WHEN stored.lease_until > clock_timestamp() THEN 'ends' ELSE 'ended' END,
                          date_trunc('second', stored.lease_until))
             WHERE stored.state = 'processing'
             UNION ALL
            -- A doubt that an attempt reported. If policy, verify or the keeper put the intent in doubt, that is a decision.
            SELECT (f.facts->>'updated_at')::timestamptz, (f.facts->>'updated_at')::timestamptz, 2, 'doubt', f.facts->>'owner',
                   (f.facts->>'fence')::integer, concat_ws(': ', f.facts->>'error_code', f.facts->>'error_message')
              FROM (SELECT d->'before' AS facts FROM jsonb_array_elements(decisions) AS d WHERE d#>>'{before,state}' = 'in_doubt'
                     UNION
                    SELECT once._summary(stored) WHERE stored.state = 'in_doubt') AS f
             WHERE NOT EXISTS (SELECT FROM jsonb_array_elements(decisions) AS d
                                WHERE d#>>'{after,state}' = 'in_doubt' AND d#>'{after,fence}' = f.facts->'fence')
             UNION ALL
            SELECT stored.completed_at, stored.completed_at, 5, 'outcome', coalesce(decided.by, stored.owner), stored.fence,
                   concat_ws(', ', stored.state::text || CASE WHEN stored.attempts > 1
                                                              THEN format(' at attempt %s', stored.attempts) ELSE '' END,
                             'status ' || stored.response_status,
                             nullif(concat_ws(' ', stored.result_type, stored.result_id), ''),
                             nullif(concat_ws(': ', stored.error_code, stored.error_message), ''))
              FROM (SELECT max(d->>'by') AS by FROM jsonb_array_elements(decisions) AS d     -- who stored it, if not the attempt
                     WHERE d->>'kind' NOT IN ('takeover', 'retry') AND d#>>'{after,state}' = stored.state::text
                       AND (d#>>'{after,fence}')::integer = stored.fence) AS decided
             WHERE stored.completed_at IS NOT NULL AND stored.state <> 'processing'
             UNION ALL
            SELECT (e->>'at')::timestamptz, (e->>'at')::timestamptz, 2, 'event', NULL, NULL,
                   concat_ws(' ', e->>'topic', e->>'id',
                             'of ' || nullif(concat_ws(' ', e->>'aggregate_type', e->>'aggregate_id'), ''),
                             'delayed until ' || date_trunc('second', (e->>'not_before')::timestamptz))
              FROM jsonb_array_elements(events) AS e
             UNION ALL
            SELECT r.at, coalesce(r.at, (e->>'at')::timestamptz), 6, r.what, 'relay ' || (r.one->>'relay'), NULL,
                   concat_ws(': ', format('event %s', e->>'id'), r.text, r.one->>'error')
              FROM jsonb_array_elements(events) AS e
             CROSS JOIN LATERAL (
                   SELECT o AS one,
                          CASE o->>'state' WHEN 'passed' THEN 'delivered' WHEN 'dead' THEN 'dead' WHEN 'retrying' THEN 'parked'
                                           ELSE 'waiting' END AS what,
                          CASE o->>'state' WHEN 'dead' THEN (o->>'updated_at')::timestamptz
                                           ELSE (o->>'parked_at')::timestamptz END AS at,
                          CASE o->>'state' WHEN 'passed' THEN 'delivered, or discarded, or older than the relay'
                                           WHEN 'pending' THEN 'the relay has not reached it yet'
                                           WHEN 'waiting' THEN 'behind another of its aggregate'
                                           WHEN 'foreign' THEN 'this relay''s progress was not written in this database'
                                           ELSE format('refused %s times', o->>'attempts') END AS text
                     FROM jsonb_array_elements(coalesce(e->'relays', '[]')) AS o) AS r
             UNION ALL
            SELECT NULL, coalesce(stored.completed_at, stored.updated_at), 7, 'archived', NULL, NULL,
                   'its day is retired; it is kept in the archive'
             WHERE archived
             UNION ALL
            SELECT expires_at, expires_at, 8, 'expires', NULL, NULL,
                   CASE WHEN expires_at > clock_timestamp() THEN 'then its outcome may be deleted'
                        ELSE 'its outcome may be deleted since then' END
             WHERE expires_at IS NOT NULL) AS t);
END $$;
