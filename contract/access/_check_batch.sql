-- SPDX-License-Identifier: PostgreSQL
-- once._check_batch(tenant, sizes): raises if a batch as a whole is invalid: the tenant, arrays of unequal length, too many elements. It
-- does not check elements: each gets its own verdict. A claim holds one lock per element until its transaction ends.
CREATE FUNCTION once._check_batch(tenant text, VARIADIC sizes integer[]) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    IF tenant IS NULL OR length(tenant) > 255 OR NOT once._find_native() THEN
        PERFORM once._refuse('P4003', tenant, NULL, NULL,
            'a tenant is 0 to 255 characters; use '''' if there is only one');
    END IF;
    PERFORM once._authorise(tenant);
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
