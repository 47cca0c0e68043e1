-- SPDX-License-Identifier: PostgreSQL
-- once_job.message_park(consumer, tenant, messages): stores messages that cannot be applied now, with their content, so that the broker
-- may delete them: state 'waiting' (behind another of its key), 'retrying' (after wait_ms, by the database's clock) or 'dead' (after the
-- last attempt). A message that is parked already gets the new state, attempts and error, and keeps its place and content. A message that
-- was applied is not parked. Runs in the caller's transaction; acknowledge them after COMMIT. Returns how many are parked now.
-- message_id: 1 to 512 bytes, the key of the message in the inbox, here and in all functions for parked messages: so 'pgonce:id:' || id
-- for a UUIDv7, unless it is received with birthdays (once.receive). fingerprint: 16 to 64 bytes. Raises 22023 for an incomplete message,
-- P4000 for the consumer, P4003 for the tenant.
CREATE FUNCTION once_job.message_park(consumer text, tenant text, messages once.parked[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    bad text;
    parked integer;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    SELECT format('message_id=%s state=%s', quote_nullable(left(m.message_id, 80)), quote_nullable(left(m.state, 80)))
      INTO bad
      FROM unnest(messages) AS m
     WHERE (octet_length(m.message_id) BETWEEN 1 AND 512 AND m.topic IS NOT NULL
            AND octet_length(m.fingerprint) BETWEEN 16 AND 64 AND m.state IN ('waiting', 'retrying', 'dead')) IS NOT TRUE
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a message to park is incomplete',
            DETAIL = regexp_replace(format('consumer=%s %s', quote_nullable(left(consumer, 80)), bad), '[[:cntrl:]]', '?',
                'g'),
            HINT = 'message_id: 1 to 512 bytes; topic; fingerprint: 16 to 64 bytes; state: waiting, retrying or dead.';
    END IF;
    -- Another process may be applying a parked one. A separate statement waits until that has ended, so that the snapshot of the next one
    -- sees the result. One look-up each, and by address: see once._promote.
    PERFORM FROM once.parked_message AS p
      WHERE p.ctid = ANY (ARRAY(SELECT a.address FROM unnest(messages) AS u
                                 CROSS JOIN LATERAL (SELECT k.ctid AS address FROM once.parked_message AS k
                                                      WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                                        AND k.message_id BETWEEN (u.message_id COLLATE "C") AND (u.message_id COLLATE "C")
                                                      ORDER BY k.message_id LIMIT 1) AS a))
      ORDER BY p.message_id FOR UPDATE;
    INSERT INTO once.parked_message AS p (consumer, tenant, message_id, topic, key, headers, payload, fingerprint, state,
                                          attempts, next_at, error, sqlstate, parked_at, updated_at)
    SELECT consumer, tenant, e.message_id, e.topic, e.key, e.headers, e.payload, e.fingerprint, e.state,
           coalesce(e.attempts, 0), now + coalesce(e.wait_ms, 0) * interval '1 ms', left(e.error, 2000), e.sqlstate, now, now
      FROM (SELECT DISTINCT ON (u.message_id COLLATE "C") u.*, min(u.ord) OVER (PARTITION BY u.message_id COLLATE "C") AS place,
                   once._bucket(u.message_id) AS bucket
              FROM unnest(messages) WITH ORDINALITY AS u (message_id, topic, key, headers, payload, fingerprint, state,
                                                          attempts, wait_ms, error, sqlstate, ord)
             ORDER BY u.message_id COLLATE "C", u.ord DESC) AS e
     WHERE (SELECT i.fingerprint = e.fingerprint AND i.state = 'succeeded' FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C"
               AND i.key = e.message_id COLLATE "C" AND i.bucket = e.bucket LIMIT 1) IS NOT TRUE
     ORDER BY e.place
    ON CONFLICT ON CONSTRAINT parked_message_pkey DO UPDATE
       SET state = EXCLUDED.state, attempts = EXCLUDED.attempts, next_at = EXCLUDED.next_at, error = EXCLUDED.error,
           sqlstate = EXCLUDED.sqlstate, updated_at = EXCLUDED.updated_at;
    GET DIAGNOSTICS parked = ROW_COUNT;
    RETURN parked;
END $$;
