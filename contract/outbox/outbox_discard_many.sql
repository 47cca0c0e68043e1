-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_discard_many(reason, relay, topic, state, before, dry_run, take, after): once.outbox_discard for all parked events that
-- fit, a piece at a time; the arguments, and what it returns, are those of once.outbox_retry_many. A dry run unless told otherwise.
-- What was parked behind a discarded event goes on. Raises 22023 for a missing reason, an unknown state or relay.
CREATE FUNCTION once.outbox_discard_many(reason text DEFAULT NULL, relay text DEFAULT NULL, topic text DEFAULT NULL,
    state text DEFAULT NULL, before timestamptz DEFAULT NULL, dry_run boolean DEFAULT true, take integer DEFAULT 1000,
    after text DEFAULT NULL)
RETURNS TABLE (met_relay text, met_topic text, met_state text, events bigint, next text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF $4 = 'delayed' THEN
        RETURN QUERY SELECT * FROM once._decide_delayed('discard', $1, $2, $3, $5, $6, $7, $8);
    ELSE
        RETURN QUERY SELECT * FROM once._decide_many('discard', $1, $2, $3, $4, $5, $6, $7, $8);
    END IF;
END $$;
