-- SPDX-License-Identifier: PostgreSQL
-- once.dead_discard_many(reason, consumer, tenant, topic, event_type, error, state, before, dry_run, take, after): once.dead_discard for
-- all parked messages that fit, a piece at a time; the arguments, and what it returns, are those of once.dead_retry_many. A dry run
-- unless told otherwise. Messages of their keys that are parked behind them go on.
-- skipped: P4029, somebody tries or decides about them just now; P4098 or P4001, the day of their UUIDv7 has no partition or has
-- not begun, so that nothing could keep them from being applied. Raises 22023 for a missing reason or an unknown state, P4000 for
-- the consumer, P4003 for the tenant.
CREATE FUNCTION once.dead_discard_many(reason text DEFAULT NULL, consumer text DEFAULT NULL, tenant text DEFAULT NULL,
    topic text DEFAULT NULL, event_type text DEFAULT NULL, error text DEFAULT NULL, state text DEFAULT NULL,
    before timestamptz DEFAULT NULL, dry_run boolean DEFAULT true, take integer DEFAULT 1000, after text DEFAULT NULL)
RETURNS TABLE (met_consumer text, met_topic text, met_state text, skipped text, messages bigint, next text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM once._decide_messages('discard', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);
END $$;
