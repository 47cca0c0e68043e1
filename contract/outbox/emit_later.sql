-- SPDX-License-Identifier: PostgreSQL
-- once.emit_later(not_before, topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent):
-- once.emit for an event that is published at not_before and not sooner, by the database's clock; a running relay publishes it within
-- about a second. not_before in the past: at once. Until then it is in once.delayed_event; see once.parked_list(state => 'delayed') and
-- once.cancel_event. It takes its place in the order of its aggregate when it is released, as if it were emitted then: an event emitted
-- meanwhile is published before it and does not wait. created_at is then, too. Events of one aggregate come in the order in which they
-- are due, and those due at the same time in the order in which they were emitted. With scope and key a second call with this event_type
-- is the same event and changes nothing: the first not_before remains, and another topic, payload or headers raise P4051. once.emit of
-- the same event publishes it at once, with the content given there; the delayed one is dropped. Raises what once.emit raises, except for
-- partitions; 22023 if not_before is missing, infinite, or more than 100 years away: probably seconds and milliseconds were confused.
CREATE FUNCTION once.emit_later(not_before timestamptz, topic text, payload jsonb, aggregate_type text DEFAULT NULL,
    aggregate_id text DEFAULT NULL, event_type text DEFAULT NULL, scope text DEFAULT NULL, key text DEFAULT NULL,
    headers jsonb DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    kind text := coalesce(event_type, topic);
    event_id uuid := gen_random_uuid();
    held once.delayed_event;
BEGIN
    IF (isfinite(not_before) AND not_before < now + interval '100 years') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a delayed event needs a time',
            DETAIL = format('not_before=%s', quote_nullable(not_before)),
            HINT = 'not_before: a timestamptz, not infinity, and at most 100 years from now. to_timestamp() takes seconds.';
    END IF;
    PERFORM once._check_and_lock(tenant, coalesce(scope, 'none'), coalesce(key, 'none'), E'\\x00000000000000000000000000000000', false);
    PERFORM once._check_event(tenant, scope, key, topic, kind, payload, NULL, NULL, headers, NULL);
    IF key IS NOT NULL THEN
        -- The id that once.emit gives it.
        SELECT once._derived_id(s.salt, tenant, scope, key, kind) INTO STRICT event_id FROM once.setting AS s WHERE s.only_row;
        IF NOT pg_try_advisory_xact_lock(once._event_lock(tenant, scope, key, kind)) THEN
            PERFORM once._refuse('P4029', tenant, scope, key, format('another transaction is emitting its event %s', kind));
        END IF;
        SELECT d.* INTO held FROM once.delayed_event AS d WHERE d.event_id = event_id;
        IF FOUND THEN
            IF held.topic <> topic COLLATE "C" OR held.payload <> payload OR held.headers IS DISTINCT FROM headers THEN
                PERFORM once._refuse('P4051', tenant, scope, key, format('event_type=%s event_id=%s', kind, event_id));
            END IF;
            RETURN event_id;
        END IF;
        PERFORM FROM once.outbox AS o
          WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
            AND o.event_type = kind COLLATE "C";
        IF FOUND THEN
            PERFORM once._check_repeated(tenant, scope, key, kind, topic, payload, NULL, NULL, headers);
            RETURN event_id;
        END IF;
    END IF;
    -- Not before an event of its aggregate that is due and not released yet.
    IF not_before <= now AND (aggregate_id IS NULL OR NOT EXISTS (
        SELECT FROM once.delayed_event AS d
         WHERE d.not_before <= now AND d.tenant = tenant COLLATE "C" AND d.aggregate_id = aggregate_id COLLATE "C"
           AND d.aggregate_type IS NOT DISTINCT FROM aggregate_type COLLATE "C")) THEN
        RETURN once.emit(topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent);
    END IF;
    INSERT INTO once.delayed_event (event_id, not_before, emitted_at, topic, event_type, aggregate_type, aggregate_id, tenant, scope,
        key, traceparent, headers, payload)
    VALUES (event_id, not_before, now, topic, kind, aggregate_type, aggregate_id, tenant, scope, key, once._trace(traceparent),
        headers, payload)
    ON CONFLICT DO NOTHING;     -- above READ COMMITTED, if another was first: 40001
    RETURN event_id;
END $$;
