-- SPDX-License-Identifier: PostgreSQL
-- once._check_sizes(sizes): the size of a batch; raises 22023 if its arrays differ in length, have an unusual shape (-1: once._length), or
-- have more than 10,000 elements.
CREATE FUNCTION once._check_sizes(VARIADIC sizes integer[]) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    IF -1 = ANY (sizes) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: an array of a batch has an unusual shape',
            DETAIL = 'one dimension, numbered from 1', HINT = 'Pass ARRAY[...], or ARRAY(SELECT unnest(...)).';
    END IF;
    IF (sizes[1] = ALL (sizes)) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the arrays of a batch differ in length',
            DETAIL = array_to_string(sizes, ' ', 'NULL'),
                HINT = 'Pass one element per intent in every array; use NULL elements for absent values.';
    END IF;
    IF coalesce(sizes[1], 0) > 10000 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a batch has at most 10000 elements',
            DETAIL = format('this one has %s', sizes[1]),
                HINT = 'Split it; 64 to 256 elements already cost next to nothing each.';
    END IF;
    RETURN coalesce(sizes[1], 0);
END $$;
