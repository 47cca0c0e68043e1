-- SPDX-License-Identifier: PostgreSQL
-- once._aggregate(tenant, aggregate_type, aggregate_id): the number of an aggregate, as in once.parked_event; NULL if the event has none.
-- Inlined.
CREATE FUNCTION once._aggregate(tenant text, aggregate_type text, aggregate_id text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN aggregate_id IS NOT NULL
        THEN hash_array_extended(ARRAY[tenant, coalesce(aggregate_type, ''), aggregate_id] COLLATE "C", 0) END
$$;
