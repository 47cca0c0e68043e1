-- SPDX-License-Identifier: PostgreSQL
-- once._keep_move(): the step 'move'. Rows that outlive their day move to the archive.
CREATE FUNCTION once._keep_move() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN once._keep_closed('move');
END $$;
