-- SPDX-License-Identifier: PostgreSQL
-- emit_body(usual, given, json, bytes): the body of once.emit and once.emit_bytes. usual: whether the payload needs no further check;
-- given: the payload as JSON; json: as it is stored; bytes: the payload as bytes, and its content type.
-- Why it is written so: the unique index of today's partition keeps an event unique there, so only the other days need a look: earlier
-- days, which are normally dropped, so that the plan opens no partition, and later days, which exist if the clock was set back. A
-- sequence tells whether it was, since opening their partitions each time would cost a third of the call. Plans are pinned as in
-- once.start.
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
    -- The check for the usual arguments, in one expression for each kind of key; once._check_and_lock for the others.
    IF key COLLATE "C" LIKE '________-____-7___-____-____________' THEN
        entered := once._is_trusted(tenant) AND once._is_dated(key)
                   AND once._quick_check(tenant, coalesce(scope, 'none'), E'\\x00000000000000000000000000000000');
    ELSE
        entered := once._is_trusted(tenant) AND (key IS NULL OR once._is_undated(key))
                   AND once._quick_check(tenant, coalesce(scope, 'none'), E'\\x00000000000000000000000000000000');
    END IF;
    IF entered IS NOT TRUE THEN
        PERFORM once._check_and_lock(tenant, coalesce(scope, 'none'), coalesce(key, 'none'), E'\\x00000000000000000000000000000000', false);
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
    IF (there AND topic <> '' AND kind <> '' AND octet_length(topic || kind) <= 255 AND {usual}
        AND (scope IS NULL) = (key IS NULL)) IS NOT TRUE THEN
        PERFORM once._check_event(tenant, scope, key, topic, kind, {given}, {bytes}, headers, day);
    ELSIF headers IS NOT NULL THEN
        IF jsonb_typeof(headers) <> 'object' OR octet_length(headers::text) > 65536 THEN
            PERFORM once._check_event(tenant, scope, key, topic, kind, {given}, {bytes}, headers, day);
        END IF;
    END IF;
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    IF key IS NULL THEN
        event_id := gen_random_uuid();
    ELSE
        -- A UUID of version 8 (RFC 9562: "vendor specific"), from the names that make the event unique here and from the tenant's salt:
        -- two databases with the same names may share a broker, which drops an event whose id it knows.
        event_id := encode(overlay(substring(sha256((SELECT sha256(s.salt || convert_to(tenant, 'UTF8')) FROM once.setting AS s
                WHERE s.only_row) || 'e'::bytea || convert_to(ARRAY[tenant, scope, key, kind]::text, 'UTF8'))
            FROM 1 FOR 16) PLACING E'\\x800080' FROM 7), 'hex')::uuid;
        -- An event committed after the snapshot does not show: today's index finds it, but the index of another day is not checked.
        IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
            IF floor(date_part('epoch', transaction_timestamp()) / 86400) <> day THEN
                RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: this transaction began on another day',
                    DETAIL = format('an event of that day may be hidden from it: tenant=%L scope=%L key=%L event_type=%L', tenant,
                        scope, key, kind), HINT = 'Retry the transaction.';
            END IF;
        END IF;
        -- Under the event's own lock, so that no INSERT waits for another transaction; then a new statement looks.
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
            PERFORM once._check_repeated(tenant, scope, key, kind, topic, {given}, {bytes}, headers);
            RETURN event_id;
        END IF;
    END IF;
    INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant, scope,
        key, traceparent, headers, payload, payload_bytes, content_type)
    VALUES (day, now, event_id, topic, kind, aggregate_type, aggregate_id, tenant, scope, key,
        traceparent, headers, {json}, {bytes})
    ON CONFLICT DO NOTHING;     -- above READ COMMITTED, after a lost race: 40001
    IF NOT FOUND THEN
        PERFORM once._check_repeated(tenant, scope, key, kind, topic, {given}, {bytes}, headers);
    END IF;
    RETURN event_id;
END;
