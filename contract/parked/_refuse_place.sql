-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_place(after): raises 22023: a decision about many cannot go on there.
CREATE FUNCTION once._refuse_place(after text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: after=%s is no place to go on', quote_nullable(left(after, 80))),
        HINT = 'after is what the call before gave as next, with the same filters.';
END $$;
