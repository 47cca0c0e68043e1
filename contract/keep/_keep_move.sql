-- SPDX-License-Identifier: PostgreSQL
-- once._keep_move(): the step 'move'. What outlives its day goes to the archive.
CREATE FUNCTION once._keep_move() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN once._keep_closed('move');
END $$;
