-- SPDX-License-Identifier: PostgreSQL
-- once._abandoned(stored): why an intent without attempts left is not tried again.
CREATE FUNCTION once._abandoned(stored once.intent) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws(': ', format('abandoned after %s attempts', stored.attempts), stored.error_message)
$$;
