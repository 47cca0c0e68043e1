-- SPDX-License-Identifier: PostgreSQL
-- once.parked_retry_many(reason, kind, relay, consumer, tenant, topic, event_type, error, state, before, dry_run, take, after):
-- once.parked_retry for all matching parked events and messages, in parts: at most `take` (10,000 events of one relay, or 1,000 messages
-- of one consumer and tenant). Narrow it by kind ('event', 'message'), relay (events), consumer (messages), tenant, topic, event_type (of
-- a message in a header: Pgonce-Event-Type, a CloudEvent's type, AMQP's type), error (a part of its text, ignoring case, or its
-- SQLSTATE), state ('waiting', 'retrying', 'dead') and before (events emitted, messages parked before then); NULL does not narrow it.
-- state 'delayed': the events of once.emit_later instead, which are then due now; no relay has them yet.
-- Each is retried with a full set of attempts, in the order of its aggregate or key: the first of each now. A dry run, the default,
-- counts and changes nothing; it needs no reason. Returns a row for each topic and state among them, or one row if nothing matches;
-- met_holder: the relay or consumer. next is the same in each: pass it as after in the next transaction; NULL means done. Commit each
-- part, since a running relay waits for it.
-- skipped: NULL, or why these messages stay as they were: P4029, another session is trying or deciding them now; P4041, the day of their
-- UUIDv7 is retired, so that no attempt may run.
-- Each decision is recorded in once.parked_decision. Events parked after the first part of their relay, and messages parked after the
-- first part of the messages, are not included. Raises 22023 for a missing reason, an unknown state or relay, P4000 for the consumer,
-- P4003 for the tenant.
CREATE FUNCTION once.parked_retry_many(reason text DEFAULT NULL, kind text DEFAULT NULL, relay text DEFAULT NULL,
    consumer text DEFAULT NULL, tenant text DEFAULT NULL, topic text DEFAULT NULL, event_type text DEFAULT NULL,
    error text DEFAULT NULL, state text DEFAULT NULL, before timestamptz DEFAULT NULL, dry_run boolean DEFAULT true,
    take integer DEFAULT 1000, after text DEFAULT NULL)
RETURNS TABLE (met_kind text, met_holder text, met_topic text, met_state text, skipped text, items bigint, next text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM once._decide_many('retry', once._parked_filter($2, $3, $4, $5, $6, $7, $8, $9, $10,
        ARRAY['waiting', 'retrying', 'dead', 'delayed']), $1, $11, $12, $13);
END $$;
