-- SPDX-License-Identifier: PostgreSQL
-- once._check_event(...): raises if an event is invalid, or if its day has no partition and cannot have one. Returns otherwise (for long
-- names within the limits, and if the day exists by now). day NULL: it has no partition yet.
CREATE FUNCTION once._check_event(tenant text, scope text, key text, topic text, kind text, payload jsonb,
    payload_bytes bytea, content_type text, headers jsonb, day integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (length(topic) BETWEEN 1 AND 255 AND num_nonnulls(payload, payload_bytes) = 1 AND length(kind) BETWEEN 1 AND 255
        AND (scope IS NULL) = (key IS NULL) AND coalesce(jsonb_typeof(headers), 'object') = 'object') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: an event needs a topic and a payload',
            DETAIL = format('topic=%s payload %s scope=%s key=%s', quote_nullable(left(topic, 80)),
                            CASE num_nonnulls(payload, payload_bytes) WHEN 0 THEN 'missing' ELSE 'given' END,
                            quote_nullable(left(scope, 80)), quote_nullable(left(key, 80))),
            HINT = 'topic and event_type: 1 to 255 characters; scope and key: both or neither; headers: a JSON object.';
    END IF;
    IF payload_bytes IS NOT NULL AND once._is_content_type(content_type) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the content type is missing or invalid',
            DETAIL = format('topic=%s content_type=%s', quote_nullable(left(topic, 80)), quote_nullable(left(content_type, 80))),
            HINT = 'content_type: type/subtype, such as application/x-protobuf, in at most 255 visible ASCII characters.';
    END IF;
    -- The most that the index for unique events can hold.
    IF key IS NOT NULL AND octet_length(concat(tenant, scope, key, kind)) > 2600 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: tenant, scope, key and event_type are too long in total',
            DETAIL = format('they have %s bytes', octet_length(concat(tenant, scope, key, kind))),
            HINT = 'They may have 2600 bytes in total.';
    END IF;
    PERFORM once._refuse('P4060', tenant, scope, key, format('%s: %s bytes, at most %s', part, size, most))
       FROM (VALUES ('payload', coalesce(octet_length(payload_bytes), octet_length(payload::text)),
                        (once._policy(coalesce(scope, ''))).event_bytes_max),
                    ('headers', octet_length(headers::text), 65536)) AS p (part, size, most)
      WHERE size > most LIMIT 1;
    IF day IS NULL THEN
        RETURN;
    END IF;
    FOR attempt IN 1 .. 2 LOOP          -- see once._open_day
        EXIT WHEN once._has_day('outbox', day);
        PERFORM once._make_days(NULL);
        EXIT WHEN once._has_day('outbox', day) OR NOT once._wait_for_days();
    END LOOP;
    IF NOT once._has_day('outbox', day) THEN
        PERFORM once._refuse('P4098', tenant, scope, key, 'no outbox partition for ' || (date '1970-01-01' + day));
    END IF;
END $$;
