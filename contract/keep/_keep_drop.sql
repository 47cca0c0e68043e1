-- SPDX-License-Identifier: PostgreSQL
-- once._keep_drop(): the step 'drop'. One last look at the detached table, and it is dropped.
CREATE FUNCTION once._keep_drop() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN once._keep_closed('drop');
END $$;
