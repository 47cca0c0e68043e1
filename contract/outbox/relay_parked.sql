-- SPDX-License-Identifier: PostgreSQL
-- once.relay_parked(relay, most): how many events are parked with a relay; counts no further than `most` (NULL: all).
CREATE FUNCTION once.relay_parked(relay text, most bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    RETURN (SELECT count(*) FROM (SELECT FROM once.parked_event AS p WHERE p.relay = relay COLLATE "C" LIMIT most) AS l);
END $$;
