-- SPDX-License-Identifier: PostgreSQL
-- emit_body(usual, given, json, bytes): the body of once.emit and once.emit_bytes. usual: whether the payload needs no further check;
-- given: the payload as JSON; json: as it is stored; bytes: the payload as bytes, and its content type.
-- Why it is written so: one expression checks the usual arguments, and one INSERT makes the id and looks at earlier days: each further
-- statement or expression costs 2,000 to 20,000 instructions. An event without an intent conflicts with nothing, so that its INSERT is
-- plain; ON CONFLICT costs 26,000 for an event of an intent. The unique index of today's partition keeps an event unique there, so only
-- the other days need a look: earlier days, and later days, which exist if the clock was set back. A sequence tells whether it was, since
-- opening their partitions each time would cost a third of the call. Plans are pinned as in once.start.
-- That this transaction has started the intent as new (once.started) saves no step. The event may exist, or be emitted right now: by a
-- transaction that emits without a start, as a lease does; by a transaction that committed a start without finish; or before a purge that
-- has forgotten the intent.
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    day integer := once._day_at(now, once._today());
    usual boolean;
    there boolean;
    repeated boolean;
    event_id uuid;
BEGIN
    -- pg_column_size() is above the length of each name. The last three parts of the second: see below.
    IF key IS NULL THEN
        usual := day IS NOT NULL AND tenant IS NOT NULL AND scope IS NULL AND '' <> ALL (ARRAY[topic, coalesce(event_type, topic)])
            AND pg_column_size(ARRAY[tenant, topic, event_type]) <= 255 AND {usual}
            AND to_regclass('once.outbox_d' || once._today()::text) IS NOT NULL AND once._is_trusted(tenant);
    ELSE
        usual := day IS NOT NULL AND tenant IS NOT NULL AND '' <> ALL (ARRAY[topic, coalesce(event_type, topic), scope])
            AND pg_column_size(ARRAY[tenant, scope, topic, event_type]) <= 255 AND {usual}
            AND octet_length(key) <= 255 AND key COLLATE "C" ~ '^[ -~]+$'
            AND to_regclass('once.outbox_d' || once._today()::text) IS NOT NULL AND once._is_trusted(tenant)
            AND transaction_timestamp() >= to_timestamp(once._today() * 86400::double precision)
            AND pg_try_advisory_xact_lock(once._event_lock(tenant, scope, key, coalesce(event_type, topic)))
            AND pg_sequence_last_value('once.outbox_day_seq') / 256 = once._today();
    END IF;
    IF usual IS NOT TRUE OR headers IS NOT NULL OR traceparent IS NOT NULL THEN
        event_type := coalesce(event_type, topic);
        IF usual IS NOT TRUE THEN
            PERFORM once._check_and_lock(tenant, coalesce(scope, 'none'), coalesce(key, 'none'), E'\\x00000000000000000000000000000000',
                false);
            there := day IS NOT NULL;
            IF day IS NULL THEN
                day := floor(date_part('epoch', now) / 86400);
                IF once._is_new_day() THEN
                    PERFORM once._make_days(NULL);
                END IF;
            END IF;
            IF (there AND to_regclass('once.outbox_d' || once._today()::text) IS NOT NULL AND topic <> '' AND event_type <> ''
                AND octet_length(topic || event_type) <= 255 AND {usual} AND (scope IS NULL) = (key IS NULL)) IS NOT TRUE THEN
                PERFORM once._check_event(tenant, scope, key, topic, event_type, {given}, {bytes}, headers, day);
            END IF;
        END IF;
        IF headers IS NOT NULL THEN
            IF jsonb_typeof(headers) <> 'object' OR octet_length(headers::text) > 65536 THEN
                PERFORM once._check_event(tenant, scope, key, topic, event_type, {given}, {bytes}, headers, day);
            END IF;
        END IF;
        traceparent := once._trace(traceparent);
        IF usual IS NOT TRUE AND key IS NOT NULL THEN
            -- An event committed after the snapshot does not show: today's index finds it, but the index of another day is not checked.
            IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
                IF floor(date_part('epoch', transaction_timestamp()) / 86400) <> day THEN
                    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: this transaction began on another day',
                        DETAIL = format('an event of that day may be hidden from it: tenant=%L scope=%L key=%L event_type=%L', tenant,
                            scope, key, event_type), HINT = 'Retry the transaction.';
                END IF;
            END IF;
            -- Under the event's own lock, so that no INSERT waits for another transaction; then a new statement looks.
            IF NOT pg_try_advisory_xact_lock(once._event_lock(tenant, scope, key, event_type)) THEN
                PERFORM once._refuse('P4029', tenant, scope, key, format('another transaction is emitting its event %s',
                    event_type));
            END IF;
            IF NOT there THEN           -- else the INSERT looks
                PERFORM FROM once.outbox AS o
                  WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
                    AND o.event_type = event_type COLLATE "C" AND o.day < day;
                repeated := FOUND;
            END IF;
            IF (pg_sequence_last_value('once.outbox_day_seq') / 256 = day) IS NOT TRUE THEN
                repeated := once._emitted_later(tenant, scope, key, event_type, day) OR repeated;
            END IF;
        END IF;
    END IF;
    IF key IS NULL THEN
        event_id := gen_random_uuid();
        INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant, traceparent, headers,
            payload, payload_bytes, content_type)
        VALUES (day, now, event_id, topic, coalesce(event_type, topic), aggregate_type, aggregate_id, tenant, traceparent, headers,
            {json}, {bytes});
        RETURN event_id;
    END IF;
    IF repeated IS NOT TRUE THEN
        INSERT INTO once.outbox AS e (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant, scope,
            key, traceparent, headers, payload, payload_bytes, content_type)
        SELECT day, now, once._derived_id(s.salt, tenant, scope, key, coalesce(event_type, topic)), topic, coalesce(event_type, topic),
            aggregate_type, aggregate_id, tenant, scope, key, traceparent, headers, {json}, {bytes}
          FROM once.setting AS s
         WHERE s.only_row AND NOT EXISTS (
            SELECT FROM once.outbox AS o
             WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
               AND o.event_type = coalesce(event_type, topic) COLLATE "C" AND o.day < coalesce(once._today(), day))
        ON CONFLICT DO NOTHING      -- above READ COMMITTED, after a lost race: 40001
        RETURNING e.event_id INTO event_id;
        IF event_id IS NOT NULL THEN
            RETURN event_id;
        END IF;
    END IF;
    PERFORM once._check_repeated(tenant, scope, key, coalesce(event_type, topic), topic, {given}, {bytes}, headers);
    SELECT once._derived_id(s.salt, tenant, scope, key, coalesce(event_type, topic)) INTO STRICT event_id
      FROM once.setting AS s WHERE s.only_row;
    RETURN event_id;
END;
