-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_retry_many(reason, relay, topic, state, before, dry_run, take, after): once.outbox_retry for all parked events that fit, a
-- piece at a time: at most `take` (10,000), of one relay. relay, topic, state ('waiting', 'retrying', 'dead') and before (emitted
-- before then) narrow it; NULL does not. Each is tried again with all its attempts before it, in the order of its aggregate: the first
-- of each now, and the others when it is delivered. A dry run, which is what it does unless told otherwise, counts, and changes
-- nothing; it needs no reason. A row for each topic and state among them, or one row where there is none; next is the same in each,
-- to be passed as after in the next transaction; NULL: through. Commit each piece, since a running relay waits for it.
-- state 'delayed': those of once.emit_later instead, which are due now, or given up; a relay has none of them.
-- Each is recorded in once.parked_decision. What is parked after a relay's first piece is not met. Raises 22023 for a missing reason, an
-- unknown state or relay.
CREATE FUNCTION once.outbox_retry_many(reason text DEFAULT NULL, relay text DEFAULT NULL, topic text DEFAULT NULL,
    state text DEFAULT NULL, before timestamptz DEFAULT NULL, dry_run boolean DEFAULT true, take integer DEFAULT 1000,
    after text DEFAULT NULL)
RETURNS TABLE (met_relay text, met_topic text, met_state text, events bigint, next text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF $4 = 'delayed' THEN
        RETURN QUERY SELECT * FROM once._decide_delayed('retry', $1, $2, $3, $5, $6, $7, $8);
    ELSE
        RETURN QUERY SELECT * FROM once._decide_many('retry', $1, $2, $3, $4, $5, $6, $7, $8);
    END IF;
END $$;
