-- SPDX-License-Identifier: PostgreSQL
-- once.receive(consumer, message_id, fingerprint, tenant, traceparent, birthdays): the inbox, in the consumer's own transaction. Returns:
--   process    apply the message, then COMMIT
--   duplicate  it was applied before: acknowledge it
-- A message is an intent whose scope is the consumer. Use the natural business id, never a broker offset. An id is only a name, and a
-- message of any age is applied: the intent's key is the id, or 'pgonce:id:' || id if that is a UUIDv7, as in pgonce consume.
--
-- With birthdays => true a UUIDv7 is its own key and is kept with its day, which is deleted as a whole; a message of a retired day is then
-- refused, even if it was never applied. A consumer must not change between the two: see once.consumer_ids.
--
-- Raises P4050 if the id came with another payload, P4029 if another transaction is applying it now, 40001 after a race above READ
-- COMMITTED; with birthdays P4041 if it is older than the retention, P4001 if its day has not begun, P4098.
CREATE FUNCTION once.receive(consumer text, message_id text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL, birthdays boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._check_and_lock(tenant, consumer, message_id, fingerprint, false);
    now timestamptz := clock_timestamp();
    open boolean;
    stored record;
    counted bigint;
BEGIN
    IF bucket > 0 THEN
        IF birthdays IS NOT TRUE THEN
            message_id := 'pgonce:id:' || message_id;
            bucket := 0;
        END IF;
    END IF;
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    IF pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, message_id)) THEN
        IF bucket = 0 OR once._is_today(bucket) THEN
            open := true;
        ELSE                            -- in its own branch: an expression is prepared as a whole
            open := once._is_open(bucket) OR once._open_day(bucket) = 'open';
        END IF;
        IF open THEN
            -- expand: insert_done(into => once.intent)
            VALUES (now, now, now, bucket, CASE WHEN bucket > 0 THEN 1 ELSE once._first_fence() END, 1, 'succeeded', tenant,
                consumer, message_id, fingerprint, traceparent)
            ON CONFLICT DO NOTHING;
            IF FOUND THEN
                counted := nextval('once.counted_process');     -- an assignment starts no query
                RETURN 'process';
            END IF;
        END IF;
    END IF;
    SELECT i.state, i.fingerprint INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C" AND i.key = message_id COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND THEN
        SELECT a.state, a.fingerprint INTO stored FROM once._archived(tenant, consumer, message_id, bucket) AS a
            WHERE a.state IS NOT NULL;
        IF NOT FOUND THEN
            PERFORM once._refuse_day(tenant, consumer, message_id, bucket);
            PERFORM once._refuse('P4029', tenant, consumer, message_id, 'another transaction is applying this message');
        END IF;
    END IF;
    IF stored.fingerprint <> fingerprint THEN
        PERFORM once._count('message_mismatch');
        PERFORM once._refuse('P4050', tenant, consumer, message_id);
    ELSIF stored.state <> 'succeeded' THEN
        PERFORM once._refuse('P4099', tenant, consumer, message_id,
            format('an attempt under a lease left it %s: use claim throughout', stored.state));
    END IF;
    PERFORM once._count('duplicate');
    RETURN 'duplicate';
END $$;
