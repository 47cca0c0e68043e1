-- SPDX-License-Identifier: PostgreSQL
-- once.emit(topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant): appends an event to
-- the outbox, in the effect's own transaction: it exists if and only if the effect does. Returns its id. event_type
-- defaults to the topic. With scope and key (the intent that causes it), a second emit of the same event_type is the
-- same event, and raises P4051 where its payload differs; the id is derived from the intent, so that consumers can tell
-- a repetition even across attempts. Events of one aggregate are published in order. Raises 22023 for a missing topic
-- or payload, P4098 where the day has no partition. No NOTIFY: its lock serialises commits.
CREATE FUNCTION once.emit(topic text, payload jsonb, aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL,
    event_type text DEFAULT NULL,
    scope text DEFAULT NULL, key text DEFAULT NULL, headers jsonb DEFAULT NULL, tenant text DEFAULT '') RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    day integer := floor(date_part('epoch', now) / 86400);
    kind text := coalesce(event_type, topic);
    event_id uuid;
    first record;
BEGIN
    IF (length(topic) BETWEEN 1 AND 255 AND payload IS NOT NULL AND length(kind) BETWEEN 1 AND 255
        AND (scope IS NULL) = (key IS NULL) AND coalesce(jsonb_typeof(headers), 'object') = 'object') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: an event needs a topic and a payload',
            DETAIL = format('topic=%s payload %s scope=%s key=%s', quote_nullable(left(topic, 80)),
                            CASE WHEN payload IS NULL THEN 'missing' ELSE 'given' END, quote_nullable(left(scope, 80)),
                                quote_nullable(left(key, 80))),
            HINT = 'topic and event_type: 1 to 255 characters; scope and key: both or neither; headers: a JSON object.';
    END IF;
    PERFORM once._check(tenant, coalesce(scope, 'none'), coalesce(key, 'none'), once._bucket(coalesce(key, 'none')),
        '\x00000000000000000000000000000000');
    IF to_regclass('once.outbox_d' || day) IS NULL THEN
        PERFORM once._refuse('P4098', tenant, scope, key, 'no outbox partition for ' || (date '1970-01-01' + day));
    END IF;
    IF key IS NULL THEN
        event_id := gen_random_uuid();
    ELSE
        -- A UUID of version 8 (RFC 9562: "vendor specific"), from the names that make the event unique.
        event_id := encode(set_byte(set_byte(substring(sha256(convert_to(
            jsonb_build_array(tenant, scope, key, kind)::text, 'UTF8')) FROM 1 FOR 16), 6, 128), 8, 128), 'hex')::uuid;
        -- Under the event's own lock, so that two transactions cannot both find nothing; a fresh statement then looks.
        IF NOT pg_try_advisory_xact_lock(hashtextextended(event_id::text COLLATE "C", 20779)) THEN
            PERFORM once._refuse('P4029', tenant, scope, key, format('another transaction is emitting its event %s',
                kind));
        END IF;
        SELECT o.topic, o.payload, o.headers INTO first FROM once.outbox AS o
         WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
           AND o.event_type = kind COLLATE "C";
        IF FOUND THEN
            IF first.topic <> topic COLLATE "C" OR first.payload <> payload
               OR first.headers IS DISTINCT FROM headers THEN
                PERFORM once._refuse('P4051', tenant, scope, key, format('event_type=%s event_id=%s', kind, event_id));
            END IF;
            RETURN event_id;
        END IF;
    END IF;
    INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant, scope,
        key, headers, payload)
    VALUES (day, now, event_id, topic, kind, aggregate_type, aggregate_id, tenant, scope, key, headers, payload)
    ON CONFLICT DO NOTHING;     -- above READ COMMITTED the look may have been too old: 40001, then
    RETURN event_id;
END $$;
