-- SPDX-License-Identifier: PostgreSQL
-- once.parked_discard_many(reason, kind, relay, consumer, tenant, topic, event_type, error, state, before, dry_run, take, after):
-- once.parked_discard for all matching parked events and messages, in parts; arguments and results are those of once.parked_retry_many.
-- By default a dry run. Those parked behind them continue. state 'delayed': the events of once.emit_later, which are cancelled.
-- skipped, for messages: P4029, another session is trying or deciding them now; P4098 or P4001, the day of their UUIDv7 has no partition
-- or has not begun, so that no row could prevent that they are applied. Raises what once.parked_retry_many does.
CREATE FUNCTION once.parked_discard_many(reason text DEFAULT NULL, kind text DEFAULT NULL, relay text DEFAULT NULL,
    consumer text DEFAULT NULL, tenant text DEFAULT NULL, topic text DEFAULT NULL, event_type text DEFAULT NULL,
    error text DEFAULT NULL, state text DEFAULT NULL, before timestamptz DEFAULT NULL, dry_run boolean DEFAULT true,
    take integer DEFAULT 1000, after text DEFAULT NULL)
RETURNS TABLE (met_kind text, met_holder text, met_topic text, met_state text, skipped text, items bigint, next text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM once._decide_many('discard', once._parked_filter($2, $3, $4, $5, $6, $7, $8, $9, $10,
        ARRAY['waiting', 'retrying', 'dead', 'delayed']), $1, $11, $12, $13);
END $$;
