-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_closed(): the trigger on the table of a closed day: an attempt that found the day open, and inserts after it was closed,
-- must retry; its retry then gets that the key is expired.
CREATE FUNCTION once._refuse_closed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: the day of this key was closed just now',
        HINT = 'Retry the transaction.';
END $$;
