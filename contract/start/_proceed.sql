-- SPDX-License-Identifier: PostgreSQL
-- once._proceed(): what once.start answers of a new intent that has the first fence and no trace. The planner takes the row itself
-- into the expression that has it, which spares each start the making of it.
CREATE FUNCTION once._proceed() RETURNS once.started LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, NULL)::once.started
$$;
