-- SPDX-License-Identifier: PostgreSQL
-- once._metrics_of_intents(): samples for once.metrics: the verdicts for attempts and messages, and the results of the last sweep.
CREATE FUNCTION once._metrics_of_intents() RETURNS TABLE (name text, labels jsonb, value double precision) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT CASE WHEN c.verdict IN ('process', 'duplicate', 'message_mismatch') THEN 'pgonce_inbox' ELSE 'pgonce_intents' END,
           jsonb_build_object('verdict', replace(c.verdict, 'message_', '')), c.count::double precision
      FROM once.counts() AS c
     UNION ALL
    SELECT f.name, jsonb_build_object('scope', s.scope), f.value
      FROM once.swept AS s
     CROSS JOIN LATERAL (VALUES ('pgonce_stale', s.stale), ('pgonce_in_doubt', s.in_doubt),
                                ('pgonce_stale_oldest_seconds', coalesce(date_part('epoch', clock_timestamp() - s.oldest_stale),
                                    0))) AS f (name, value);
END $$;
