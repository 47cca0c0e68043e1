-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_untaken(): the events that no relay takes, by topic: they will not be published, and are deleted with their day. Looks at
-- the newest 10,000 events, and at the keeper's count from its last pass through the whole outbox (its step 'untaken'); returns the
-- larger count of the two. No rows if a relay takes all topics. A replication slot counts as a relay from once.add_capture on.
CREATE FUNCTION once.outbox_untaken() RETURNS TABLE (topic text, events bigint, oldest timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM once.relay AS r WHERE r.topics IS NULL) THEN
        RETURN QUERY
        SELECT t.topic::text, max(t.events), min(t.oldest)
          FROM (SELECT n.topic, count(*) AS events, min(n.created_at) AS oldest
                  FROM (SELECT o.topic, o.created_at FROM once.outbox AS o ORDER BY o.xid DESC, o.id DESC LIMIT 10000) AS n
                 GROUP BY n.topic
                 UNION ALL
                SELECT u.topic, u.events, u.oldest FROM once.untaken AS u) AS t
         WHERE NOT EXISTS (SELECT FROM once.relay AS r WHERE t.topic LIKE ANY (r.topics))
         GROUP BY t.topic ORDER BY t.topic;
    END IF;
END $$;
