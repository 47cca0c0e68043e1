-- SPDX-License-Identifier: PostgreSQL
-- once_job.relay_parked(relay, most, weighed): how many events are parked with a relay; counts no further than `most` (NULL: all).
-- weighed: an event that waits, for its first attempt or behind another of its aggregate, counts a tenth, as it costs no attempts: many
-- events of a host that hangs can then be parked before the others have to wait.
CREATE FUNCTION once_job.relay_parked(relay text, most bigint DEFAULT NULL, weighed boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    IF weighed THEN
        RETURN (SELECT least(most, count(*) FILTER (WHERE l.state <> 'waiting') + count(*) FILTER (WHERE l.state = 'waiting') / 10)
                  FROM (SELECT p.state FROM once.parked_event AS p WHERE p.relay = relay COLLATE "C" LIMIT 10 * most) AS l);
    END IF;
    RETURN (SELECT count(*) FROM (SELECT FROM once.parked_event AS p WHERE p.relay = relay COLLATE "C" LIMIT most) AS l);
END $$;
