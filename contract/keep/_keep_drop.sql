-- SPDX-License-Identifier: PostgreSQL
-- once._keep_drop(): the step 'drop'. Checks the detached table a last time and drops it.
CREATE FUNCTION once._keep_drop() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN once._keep_closed('drop');
END $$;
