-- SPDX-License-Identifier: PostgreSQL
-- once_job.relay_fetch(relay, ids, xids, days, skip_dead): the complete events that once_job.relay_list listed, in the given order.
-- blocked: an earlier event of its aggregate is parked with this relay (with skip_dead: and not dead): park this one behind it.
-- traceparent: the event's own, or else that of its intent. At most 10,000 at once (22023). An event that no longer exists has no row.
CREATE FUNCTION once_job.relay_fetch(relay text, ids bigint[], xids xid8[], days integer[], skip_dead boolean DEFAULT false)
RETURNS SETOF once.outgoing
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_sizes(once._length(ids, 0), once._length(xids, 0), once._length(days, 0));
    first_day integer;
    last_day integer;
    any_parked boolean := EXISTS (SELECT FROM once.parked_event AS p WHERE p.relay = relay COLLATE "C");
BEGIN
    PERFORM once._authorise(NULL);       -- all tenants
    SELECT min(d), max(d) INTO first_day, last_day FROM unnest(days) AS d;
    RETURN QUERY
    SELECT o.id, o.xid, o.day, o.event_id, o.topic::text, o.event_type::text, o.aggregate_type::text, o.aggregate_id::text,
           o.tenant::text, o.scope::text, o.key::text, coalesce(o.traceparent,
               (SELECT i.traceparent FROM once.intent AS i
                 WHERE i.tenant = o.tenant COLLATE "C" AND i.scope = o.scope COLLATE "C" AND i.key = o.key COLLATE "C"
                   AND i.bucket = once._bucket(o.key) LIMIT 1))::text,
           o.headers, CASE WHEN o.payload_bytes IS NULL THEN o.payload END, o.payload_bytes, o.content_type::text, o.created_at, 0,
           any_parked AND o.id > ANY (ARRAY(
               SELECT p.id FROM once.parked_event AS p
                WHERE p.relay = relay COLLATE "C" AND NOT (skip_dead AND p.state = 'dead')
                  AND p.aggregate BETWEEN once._aggregate(o.tenant, o.aggregate_type, o.aggregate_id)
                                      AND once._aggregate(o.tenant, o.aggregate_type, o.aggregate_id)
                ORDER BY p.aggregate, p.id LIMIT 1))
      FROM unnest(ids, xids, days) WITH ORDINALITY AS u (id, xid, day, ord)
      -- LIMIT keeps this a look-up per element, and the range opens only the days of this batch: see once.claim_many.
     CROSS JOIN LATERAL (SELECT e.* FROM once.outbox AS e
                          WHERE e.xid = u.xid AND e.id = u.id AND e.day = u.day
                            AND e.day BETWEEN first_day AND last_day LIMIT 1) AS o
     ORDER BY u.ord;
END $$;
