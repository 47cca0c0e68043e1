-- SPDX-License-Identifier: PostgreSQL
-- once.retention_held(): what prevents deletion now, and the time since when everything is therefore kept (held_before). what is
--   move      slots are moving to or from this node (pgonce rehome); since is NULL
--   clock     it is not steady for long enough yet (once.setting.clock_settle), or no keeper has read it (since is NULL)
--   relay     its oldest undelivered event is older than what would be deleted
--   consumer  its oldest position is
--   day       a closing day waits: for an attempt under a lease, or for a row that is being changed
-- No rows if nothing does.
CREATE FUNCTION once.retention_held() RETURNS TABLE (what text, name text, tenant text, since timestamptz,
    held_before timestamptz, hint text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    why text := once._clock_held();
    shortest timestamptz;
BEGIN
    IF why IS NOT NULL THEN
        RETURN QUERY SELECT 'clock', 'database', NULL::text, (SELECT c.unsteady_since FROM once.clock AS c), NULL::timestamptz,
            why || CASE WHEN EXISTS (SELECT FROM once.clock)
                        THEN '. It becomes steady without help; if not, check the server''s time synchronisation.'
                        ELSE ', and nothing is deleted before: start pgonce keep.' END;
    END IF;
    IF once._is_moving() THEN
        RETURN QUERY SELECT 'move', 'slots', NULL::text, NULL::timestamptz, NULL::timestamptz,
            'They are moving to or from this node. If no pgonce rehome runs, start it again: it finishes or undoes the move. '
            'In a restored copy of a node: DROP PUBLICATION pgonce_rehome.';
    END IF;
    SELECT clock_timestamp() - least(min(p.retention), (SELECT make_interval(days => s.horizon_days) FROM once.setting AS s))
      INTO shortest FROM once.scope AS p;
    RETURN QUERY
    SELECT b.what, b.name, b.tenant, b.since, b.needed_from, CASE b.what
           WHEN 'relay' THEN CASE WHEN EXISTS (SELECT FROM once.capture AS k WHERE k.slot = b.name)
               THEN 'It is a replication slot: see once.capture_list. ' ELSE '' END
               || 'Let it deliver, retry or discard its parked events (once.parked_list), or call once.drop_relay.'
           ELSE 'Start it. If a part no longer exists: once.consumer_report(consumer, NULL, tenant, part).' END
      FROM once._backlog() AS b WHERE b.needed_from < shortest;
    RETURN QUERY
    SELECT 'day', (date '1970-01-01' + c.day)::text, NULL::text, c.held_since, to_timestamp(c.day * 86400.0), c.held
      FROM once.closing AS c WHERE c.held IS NOT NULL ORDER BY c.day;
END $$;
