-- SPDX-License-Identifier: PostgreSQL
-- once._keep_doubt(): the step 'doubt'. In a closed day no attempt can run: stale ones become in doubt. A live lease holds the day up.
CREATE FUNCTION once._keep_doubt() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN once._keep_closed('doubt');
END $$;
