-- SPDX-License-Identifier: PostgreSQL
-- once._blocks(leaf): the current number of blocks of this table's heap.
CREATE FUNCTION once._blocks(leaf regclass) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT pg_relation_size(leaf) / current_setting('block_size')::integer
$$;
