-- SPDX-License-Identifier: PostgreSQL
-- once._metrics_of_intents(): samples for once.metrics: what attempts and messages were told, what the last sweep found.
CREATE FUNCTION once._metrics_of_intents() RETURNS TABLE (name text, labels jsonb, value double precision)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH counted AS (SELECT c.scope, v.verdict, v.inbox, c.count,
                            sum(c.count) OVER (PARTITION BY c.scope, v.inbox) > 0 AS used
                       FROM once.counts() AS c JOIN once._counted() AS v ON v.verdict = c.verdict)
    SELECT 'pgonce_intents', jsonb_build_object('scope', c.scope, 'verdict', c.verdict), c.count::double precision
      FROM counted AS c WHERE NOT c.inbox
     UNION ALL
    -- A scope is no consumer before its first message.
    SELECT 'pgonce_inbox', jsonb_build_object('consumer', c.scope, 'verdict', CASE c.verdict WHEN 'message_mismatch'
           THEN 'mismatch' ELSE c.verdict END), c.count
      FROM counted AS c WHERE c.inbox AND c.used
     UNION ALL
    SELECT f.name, jsonb_build_object('scope', s.scope), f.value
      FROM once.swept AS s
     CROSS JOIN LATERAL (VALUES ('pgonce_stale', s.stale), ('pgonce_in_doubt', s.in_doubt),
                                ('pgonce_stale_oldest_seconds', coalesce(date_part('epoch', clock_timestamp() - s.oldest_stale),
                                    0))) AS f (name, value);
END $$;
