-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_place(after): raises 22023: a decision about many cannot continue there.
CREATE FUNCTION once._refuse_place(after text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '22023',
        MESSAGE = format('pgonce: after=%s is not a position to continue from', quote_nullable(left(after, 80))),
        HINT = 'Pass the next of the previous call as after, with the same filters.';
END $$;
