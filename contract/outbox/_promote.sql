-- SPDX-License-Identifier: PostgreSQL
-- once._promote(relay, aggregates): makes the first parked event of each of these aggregates that is not dead due now, if it waited for
-- an earlier one. Called whenever a parked event has gone or died; NULL: for all aggregates. An event that waits behind another has
-- next_at 'infinity', so that once_job.relay_due does not read all of them each time.
--
-- Here and in the neighbouring functions rows are found by one look-up each, written with LIMIT, BETWEEN and an order that only one index
-- has, and are changed by their address. While a table is empty all indexes look alike, and a plan made then stays in use when the table
-- has filled. There is no sort: while all parked events are dead, the index of due events would look like the cheapest.
CREATE FUNCTION once._promote(relay text, aggregates bigint[]) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    IF aggregates IS NULL THEN
        aggregates := ARRAY(SELECT DISTINCT p.aggregate FROM once.parked_event AS p
                             WHERE p.relay = relay COLLATE "C" AND p.next_at = 'infinity');
    END IF;
    UPDATE once.parked_event AS p SET next_at = now, updated_at = now
      FROM (SELECT h.address
              FROM (SELECT DISTINCT u.aggregate FROM unnest(aggregates) AS u (aggregate)) AS a
             CROSS JOIN LATERAL (SELECT e.ctid AS address, e.next_at FROM once.parked_event AS e
                                  WHERE e.relay = relay COLLATE "C" AND e.aggregate BETWEEN a.aggregate AND a.aggregate
                                    AND e.state <> 'dead'
                                  ORDER BY e.aggregate, e.id LIMIT 1) AS h
             WHERE h.next_at = 'infinity') AS f
     WHERE p.ctid = f.address;
END $$;
