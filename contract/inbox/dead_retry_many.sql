-- SPDX-License-Identifier: PostgreSQL
-- once.dead_retry_many(reason, consumer, tenant, topic, event_type, error, state, before, dry_run, take, after): once.dead_retry for all
-- parked messages that fit, a piece at a time: at most `take` (1,000), of one consumer and tenant. consumer, tenant, topic, event_type
-- (in a header: Pgonce-Event-Type, a CloudEvent's type, AMQP's type), error (a part of its text in any case of letters, or its
-- SQLSTATE), state ('waiting', 'retrying', 'dead') and before (parked before then) narrow it; NULL does not. Each is tried again with
-- all its attempts before it, in the order of its key. A dry run, which is what it does unless told otherwise, counts, and changes
-- nothing; it needs no reason. A row for each topic and state among them, or one row where there is none; next is the same in each,
-- to be passed as after in the next transaction; NULL: through. Commit each piece.
-- skipped: NULL, or why these stay as they were: P4029, somebody tries or decides about them just now; P4041, the day of their
-- UUIDv7 is retired, so that no attempt may run.
-- Each that is decided is recorded in once.parked_decision. What is parked after the first piece is not met. Raises 22023 for a missing
-- reason or an unknown state, P4000 for the consumer, P4003 for the tenant.
CREATE FUNCTION once.dead_retry_many(reason text DEFAULT NULL, consumer text DEFAULT NULL, tenant text DEFAULT NULL,
    topic text DEFAULT NULL, event_type text DEFAULT NULL, error text DEFAULT NULL, state text DEFAULT NULL,
    before timestamptz DEFAULT NULL, dry_run boolean DEFAULT true, take integer DEFAULT 1000, after text DEFAULT NULL)
RETURNS TABLE (met_consumer text, met_topic text, met_state text, skipped text, messages bigint, next text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM once._decide_messages('retry', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);
END $$;
