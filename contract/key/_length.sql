-- SPDX-License-Identifier: PostgreSQL
-- once._length(elements, absent): the number of elements of an array; absent if the array is NULL; -1 if its elements are not numbered
-- from 1 in one dimension, since an index would then find another element than the caller meant. Inlined.
CREATE FUNCTION once._length(elements anyarray, absent integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN elements IS NULL THEN absent
                WHEN cardinality(elements) = 0 THEN 0
                WHEN array_ndims(elements) = 1 AND array_lower(elements, 1) = 1 THEN cardinality(elements)
                ELSE -1 END
$$;
