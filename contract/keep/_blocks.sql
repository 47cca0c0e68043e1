-- SPDX-License-Identifier: PostgreSQL
-- once._blocks(leaf): how many blocks the heap of this table has now.
CREATE FUNCTION once._blocks(leaf regclass) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT pg_relation_size(leaf) / current_setting('block_size')::integer
$$;
