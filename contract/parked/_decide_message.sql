-- SPDX-License-Identifier: PostgreSQL
-- once._decide_message(what, reason, consumer, tenant, message_id): 'retry' or 'discard' for a parked message, recorded in
-- once.parked_decision. NULL: done; '': it is not parked; otherwise the SQLSTATE of the reason why not, and nothing was changed. Waits
-- while an attempt at it is under way.
CREATE FUNCTION once._decide_message(what text, reason text, consumer text, tenant text, message_id text) RETURNS text
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz;
    bucket integer := once._bucket(message_id);
    place bigint;
    lane bigint;
    print bytea;
    state text;
    error text;
    known text;
BEGIN
    -- Without its payload, which may be large. One look-up each, and then by address: see once._promote.
    SELECT p.position, p.key_hash, p.fingerprint, p.state, p.error INTO place, lane, print, state, error
      FROM once.parked_message AS p
     WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C"
       AND p.message_id BETWEEN (message_id COLLATE "C") AND (message_id COLLATE "C")
     ORDER BY p.message_id LIMIT 1 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN '';
    END IF;
    now := clock_timestamp();
    IF what = 'retry' THEN
        IF bucket > 0 AND once._receivable(tenant, consumer, message_id, bucket, print) = 'P4041' THEN
            RETURN 'P4041';
        END IF;
        UPDATE once.parked_message AS p
           SET attempts = 0, next_at = now, updated_at = now,
               state = CASE WHEN (SELECT true FROM once.parked_message AS e
                                   WHERE e.consumer = consumer COLLATE "C" AND e.tenant = tenant COLLATE "C" AND e.key_hash = lane
                                     AND e.position < place ORDER BY e.key_hash, e.position LIMIT 1)
                            THEN 'waiting' ELSE 'retrying' END
         WHERE p.ctid = (SELECT k.ctid FROM once.parked_message AS k
                          WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                            AND k.message_id BETWEEN (message_id COLLATE "C") AND (message_id COLLATE "C")
                          ORDER BY k.message_id LIMIT 1);
    ELSE
        -- A malformed id, or one of a closed day, can never be applied: no row is needed.
        IF bucket >= 0 THEN
            known := once._receivable(tenant, consumer, message_id, bucket, print);
            IF known = 'P4029' OR EXISTS (SELECT FROM once.peek(consumer, message_id, tenant) AS i
                                           WHERE i.verdict = 'processing_active') THEN
                RETURN 'P4029';
            ELSIF known IN ('P4001', 'P4098') THEN
                RETURN known;
            ELSIF known = 'P4099' THEN
                -- A consumer that works under leases left it unfinished: no attempt may continue it.
                PERFORM once.resolve(consumer, message_id, 'succeeded', reason, tenant => tenant)
                   FROM once.peek(consumer, message_id, tenant) AS i
                  WHERE i.state IN ('processing', 'failed_retryable', 'in_doubt');
            ELSIF known = 'new' THEN
                -- expand: insert_done(into => once.intent)
                VALUES (now, now, now, bucket, 1, 1, 'succeeded', tenant, consumer, message_id, print, NULL)
                ON CONFLICT DO NOTHING;     -- above READ COMMITTED, after a lost race: 40001
            END IF;
        END IF;
        DELETE FROM once.parked_message AS p
         WHERE p.ctid = (SELECT k.ctid FROM once.parked_message AS k
                          WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                            AND k.message_id BETWEEN (message_id COLLATE "C") AND (message_id COLLATE "C")
                          ORDER BY k.message_id LIMIT 1);
    END IF;
    INSERT INTO once.parked_decision (decided_by, reason, what, consumer, tenant, subject, from_state, error)
    VALUES (session_user, reason, what, consumer, tenant, message_id, state, error);
    RETURN NULL;
END $$;
