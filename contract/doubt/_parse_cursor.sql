-- SPDX-License-Identifier: PostgreSQL
-- once._parse_cursor(after): the cursor of a function that reads through the tables, table:block:row, the address of the last row that it
-- looked at; NULL: before the first row.
CREATE FUNCTION once._parse_cursor(after text) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    place bigint[] := CASE WHEN after COLLATE "C" ~ '^[0-9]{1,18}:[0-9]{1,10}:[0-9]{1,5}$' THEN string_to_array(after, ':')::bigint[] END;
BEGIN
    IF (place[3] <= 65535) IS NOT TRUE AND after IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: after is not a cursor',
            HINT = 'Pass the column next of the last row, or NULL to begin.';
    END IF;
    RETURN coalesce(place, ARRAY[0, 0, 0]);
END $$;
