-- SPDX-License-Identifier: PostgreSQL
-- once.slots(): which slots are open on this node, and their epochs. Among several nodes, the node that has a slot open with the highest
-- epoch serves it. No rows: the node is not divided and serves every tenant. These are present values, independent of the snapshot. Doors
-- call it when they start and after P4097.
CREATE FUNCTION once.slots() RETURNS TABLE (slot integer, epoch bigint, open boolean)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.n, s.state / 2, s.state % 2 = 1
      FROM (SELECT g.n, once._slot_state(g.n) AS state FROM generate_series(0, 63) AS g (n) WHERE once._is_divided()) AS s
     ORDER BY s.n
$$;
