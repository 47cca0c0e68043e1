-- SPDX-License-Identifier: PostgreSQL
-- once.emit(topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent): appends an event to
-- the outbox, in the effect's own transaction: it exists if and only if the effect does. Returns its id. event_type
-- defaults to the topic. With scope and key (the intent that causes it), a second emit of the same event_type is the
-- same event, and raises P4051 where its payload differs; the id is derived from the intent and the installation's salt, so that
-- consumers can tell a repetition even across attempts, and no other installation's event has it. Events of one aggregate are
-- published in order. Raises 22023 for a missing topic or payload, and where tenant, scope, key and event_type have more than 2600
-- bytes together; P4060 where the payload, as text, is larger than event_bytes_max of its scope (else of the default policy), or
-- the headers than 64 KiB; P4098 where the day has no partition; 40001 where a transaction above READ COMMITTED began on another
-- day. One that began today does not see yesterday's event that was committed after its snapshot: there it is finish, complete or
-- receive, in the same transaction, that raises 40001. No NOTIFY: its lock serialises commits.
-- traceparent (W3C): the trace that the event belongs to, where it is not that of its intent; a malformed one is ignored.
--
-- Why it is written so: today's partition keeps an event single by its unique index, so only the other days have to be
-- looked at: those before, which as a rule are gone, so that the plan opens no partition, and those after, where the clock
-- has stepped back: a sequence tells, since to open their partitions each time would cost a third of the call. Plans are
-- pinned as in once.start.
CREATE FUNCTION once.emit(topic text, payload jsonb, aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL,
    event_type text DEFAULT NULL, scope text DEFAULT NULL, key text DEFAULT NULL, headers jsonb DEFAULT NULL, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    day integer := once._day_at(now, once._today());
    of_today boolean := day IS NOT NULL;
    kind text := coalesce(event_type, topic);
    entered boolean;
    event_id uuid;
    there boolean;
    repeated boolean;
BEGIN
    -- The gate for what is usual, in one expression for each kind of key; once._enter for the rest.
    IF key COLLATE "C" LIKE '________-____-7___-____-____________' THEN
        entered := once._is_trusted() AND once._is_dated(key)
                   AND once._is_usual_call(tenant, coalesce(scope, 'none'), E'\\x00000000000000000000000000000000');
    ELSE
        entered := once._is_trusted() AND (key IS NULL OR once._is_undated(key))
                   AND once._is_usual_call(tenant, coalesce(scope, 'none'), E'\\x00000000000000000000000000000000');
    END IF;
    IF entered IS NOT TRUE THEN
        PERFORM once._enter(tenant, coalesce(scope, 'none'), coalesce(key, 'none'), E'\\x00000000000000000000000000000000', false);
    END IF;
    IF day IS NULL THEN
        day := floor(date_part('epoch', now) / 86400);
        IF once._is_new_day() THEN
            PERFORM once._make_days(NULL);
        END IF;
        there := once._has_day('outbox', day);
    ELSE
        there := to_regclass('once.outbox_d' || once._today()::text) IS NOT NULL;
    END IF;
    IF (there AND topic <> '' AND kind <> '' AND octet_length(topic || kind) <= 255 AND octet_length(payload::text) <= 8192
        AND (scope IS NULL) = (key IS NULL)) IS NOT TRUE THEN
        PERFORM once._check_event(tenant, scope, key, topic, kind, payload, headers, day);
    ELSIF headers IS NOT NULL THEN
        IF jsonb_typeof(headers) <> 'object' OR octet_length(headers::text) > 65536 THEN
            PERFORM once._check_event(tenant, scope, key, topic, kind, payload, headers, day);
        END IF;
    END IF;
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    IF key IS NULL THEN
        event_id := gen_random_uuid();
    ELSE
        -- A UUID of version 8 (RFC 9562: "vendor specific"), from the names that make the event unique here and from the tenant's
        -- salt: two databases with the same names may share a broker, which drops what has an id that it knows.
        event_id := encode(overlay(substring(sha256((SELECT sha256(s.salt || convert_to(tenant, 'UTF8')) FROM once.setting AS s
                WHERE s.only_row) || 'e'::bytea || convert_to(ARRAY[tenant, scope, key, kind]::text, 'UTF8'))
            FROM 1 FOR 16) PLACING E'\\x800080' FROM 7), 'hex')::uuid;
        -- An event that was committed after the snapshot does not show: today's index knows it, that of another day is not asked.
        IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
            IF floor(date_part('epoch', transaction_timestamp()) / 86400) <> day THEN
                RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: this transaction began on another day',
                    DETAIL = format('an event of that day may be hidden from it: tenant=%L scope=%L key=%L event_type=%L', tenant,
                        scope, key, kind), HINT = 'Retry the transaction.';
            END IF;
        END IF;
        -- Under the event's own lock, so that no INSERT waits for another transaction; a fresh statement then looks.
        IF NOT pg_try_advisory_xact_lock(uuid_hash_extended(event_id, 20779)) THEN
            PERFORM once._refuse('P4029', tenant, scope, key, format('another transaction is emitting its event %s',
                kind));
        END IF;
        IF of_today THEN
            PERFORM FROM once.outbox AS o
              WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
                AND o.event_type = kind COLLATE "C" AND o.day < coalesce(once._today(), day);
        ELSE
            PERFORM FROM once.outbox AS o
              WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
                AND o.event_type = kind COLLATE "C" AND o.day < day;
        END IF;
        repeated := FOUND;
        IF (pg_sequence_last_value('once.outbox_day_seq') / 256 = day) IS NOT TRUE THEN
            repeated := repeated OR once._emitted_later(tenant, scope, key, kind, day);
        END IF;
        IF repeated THEN
            PERFORM once._check_repeated(tenant, scope, key, kind, topic, payload, headers);
            RETURN event_id;
        END IF;
    END IF;
    INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant, scope,
        key, traceparent, headers, payload)
    VALUES (day, now, event_id, topic, kind, aggregate_type, aggregate_id, tenant, scope, key,
        traceparent, headers, payload)
    ON CONFLICT DO NOTHING;     -- above READ COMMITTED, where a race was lost: 40001
    IF NOT FOUND THEN
        PERFORM once._check_repeated(tenant, scope, key, kind, topic, payload, headers);
    END IF;
    RETURN event_id;
END $$;
