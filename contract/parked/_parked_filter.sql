-- SPDX-License-Identifier: PostgreSQL
-- once._parked_filter(kind, relay, consumer, tenant, topic, event_type, error, state, before, states): the filter for parked events or
-- messages in these states. Raises 22023 for a filter that matches nothing, P4000 for the consumer, P4003 for the tenant.
CREATE FUNCTION once._parked_filter(kind text, relay text, consumer text, tenant text, topic text, event_type text, error text,
    state text, before timestamptz, states text[]) RETURNS once.parked_filter LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM once._authorise(tenant);        -- NULL, all tenants: for roles that are not bound
    IF consumer IS NOT NULL THEN
        PERFORM once._check_consumer(coalesce(tenant, ''), consumer);
    END IF;
    IF kind NOT IN ('event', 'message') OR NOT state = ANY (states) OR (relay IS NOT NULL AND (consumer IS NOT NULL OR kind = 'message'))
       OR (kind = 'event' AND consumer IS NOT NULL)
       OR (state IN ('pending', 'delayed') AND (consumer IS NOT NULL OR kind = 'message')) THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('pgonce: no parked event or message can match kind=%s state=%s relay=%s consumer=%s',
                quote_nullable(left(kind, 80)), quote_nullable(left(state, 80)), quote_nullable(left(relay, 80)),
                quote_nullable(left(consumer, 80))),
            HINT = format('kind is event (with a relay) or message (with a consumer). state is one of %s; '
                || 'only events are pending or delayed.', array_to_string(states, ', '));
    END IF;
    RETURN ROW(CASE WHEN relay IS NOT NULL OR state IN ('pending', 'delayed') THEN 'event' WHEN consumer IS NOT NULL THEN 'message'
                    ELSE kind END, relay, consumer, tenant, topic, event_type, error, state, before);
END $$;
