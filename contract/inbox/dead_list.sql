-- SPDX-License-Identifier: PostgreSQL
-- once.dead_list(consumer, state, take): messages that consumers have parked, at most `take`, by consumer and in the order
-- in which they came: the 'dead' ones, or those that are 'waiting' or 'retrying'; state NULL: all. consumer NULL: of all.
CREATE FUNCTION once.dead_list(consumer text DEFAULT NULL, state text DEFAULT 'dead', take integer DEFAULT 100)
RETURNS SETOF once.listed_message LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF state NOT IN ('waiting', 'retrying', 'dead') OR (take >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: no such state of a message, or take is missing: %s',
            quote_nullable(left(state, 80))), HINT = 'state is one of waiting, retrying, dead; NULL for all.';
    END IF;
    RETURN QUERY
    SELECT p.consumer::text, p.state::text, p.message_id::text, p.topic::text, p.key::text, p.tenant::text, p.attempts,
           CASE WHEN p.state <> 'dead' THEN p.next_at END, p.error, p.sqlstate::text, p.parked_at
      FROM once.parked_message AS p
     WHERE (consumer IS NULL OR p.consumer = consumer COLLATE "C") AND (state IS NULL OR p.state = state COLLATE "C")
     ORDER BY p.consumer, p.position LIMIT take;
END $$;
