-- SPDX-License-Identifier: PostgreSQL
-- once._event_id(id): the id of an event, from text; NULL if it is not a UUID, so that no event has it.
CREATE FUNCTION once._event_id(id text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN id ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN id::uuid END
$$;
