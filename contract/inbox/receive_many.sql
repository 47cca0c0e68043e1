-- SPDX-License-Identifier: PostgreSQL
-- once.receive_many(consumer, message_ids[], keys[], fingerprints[], tenant, skip_dead, traceparents[], birthdays): the inbox for a batch
-- of messages (see once.receive) in one statement, in the consumer's own transaction. keys: messages with the same key are handled in
-- order (NULL: in no order). One row per element, in order (ordinal from 1):
--   process            apply it, then COMMIT
--   duplicate          it was applied before, or is earlier in this batch: acknowledge it
--   parked             it is parked (once_job.message_park): acknowledge it
--   blocked            one of its key is parked (with skip_dead: and not dead), or fails earlier in this batch: park it behind
--   mismatch           P4050: its id came with another payload
--   processing_active  P4029: another transaction is applying it now; try again
--   invalid            code gives the reason: P4001, P4003, P4099; with birthdays P4041, P4098 (try again)
-- code is NULL if there is no error. A bad element never affects its neighbours. Raises only for the batch as a whole: 22023 for arrays
-- of unequal length or more than 10,000 elements, P4000 for the consumer, P4003 for the tenant, 40001 after a race above READ COMMITTED.
--
-- Why it is written so: if all messages are new and nothing is parked, one statement suffices: see once.claim_many. Otherwise three: check
-- and lock, look, insert the new ones. The locks are taken before the look, so no INSERT waits for another transaction. Elements are
-- decided one by one only if something is unusual. The settings pin the plans, as in once.claim_many.
CREATE FUNCTION once.receive_many(consumer text, message_ids text[], keys text[], fingerprints bytea[], tenant text DEFAULT '',
    skip_dead boolean DEFAULT false, traceparents text[] DEFAULT NULL, birthdays boolean DEFAULT false)
RETURNS TABLE (ordinal integer, verdict text, code text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := cardinality(message_ids);
    now timestamptz := clock_timestamp();
    today integer;
    today_open boolean;
    counted bigint;
    buckets integer[];
    first_fence integer;
    first_bucket integer;
    last_bucket integer;
    codes text[];           -- what is wrong with an element alone
    firsts integer[];       -- the first position of its id in this batch
    opaque boolean := birthdays IS NOT TRUE;
    renamed boolean;        -- the ids are UUIDv7s, and opaque
    of_today boolean;
    takeable boolean[];     -- its lock is held, and its day is plainly open
    plain boolean;          -- all of them are
    stored text[];          -- from the inbox: NULL nothing, 'duplicate', or an SQLSTATE
    held text[];            -- from the parked messages: NULL nothing, 'parked', 'P4050', 'blocked'
    chosen boolean[];
    fresh integer;
    entered integer;
    behind text[];
    verdicts text[];
BEGIN
    IF once._quick_check_batch(tenant, size, array_dims(message_ids), array_dims(fingerprints),
                      CASE WHEN keys IS NULL THEN array_dims(message_ids) ELSE array_dims(keys) END,
                      CASE WHEN traceparents IS NULL THEN array_dims(message_ids) ELSE array_dims(traceparents) END) IS NOT TRUE THEN
        size := once._check_batch(tenant, once._length(message_ids, 0), once._length(keys, once._length(message_ids, 0)),
                                  once._length(fingerprints, 0), once._length(traceparents, once._length(message_ids, 0)));
    END IF;
    IF traceparents IS NOT NULL THEN
        FOR n IN 1 .. size LOOP
            traceparents[n] := once._trace(traceparents[n]);
        END LOOP;
    END IF;
    IF (length(consumer) BETWEEN 1 AND 255) IS NOT TRUE THEN
        PERFORM once._refuse('P4000', tenant, consumer, NULL);
    ELSIF size = 0 THEN
        RETURN;
    END IF;

    <<short>>
    BEGIN
        EXIT short WHEN current_setting('transaction_isolation') <> 'read committed';
        IF message_ids[1] COLLATE "C" NOT LIKE '________-____-7%' THEN
            first_bucket := 0;
            -- expand: lock_all(fits => once._is_undated(message_ids[n]), scope => consumer, key => message_ids[n],
            --   fingerprint => fingerprints[n])
        ELSIF opaque THEN
            first_bucket := 0;
            renamed := true;
            -- expand: lock_all(fits => message_ids[n] COLLATE "C" LIKE '________-____-7___-____-____________'
            --   AND once._is_dated(message_ids[n]), scope => consumer, key => 'pgonce:id:' || message_ids[n],
            --   fingerprint => fingerprints[n])
        ELSE
            first_bucket := once._match_day(message_ids[1], once._today());
            of_today := first_bucket IS NOT NULL;
            IF of_today THEN
                -- expand: lock_all(fits => message_ids[n] COLLATE "C" LIKE '________-____-7___-____-____________'
                --   AND once._is_dated(message_ids[n]) AND once._match_day(message_ids[n], once._today()) = first_bucket,
                --   scope => consumer, key => message_ids[n], fingerprint => fingerprints[n])
                of_today := once._is_today(first_bucket);
            ELSE
                first_bucket := once._bucket(message_ids[1]);
                -- expand: lock_all(fits => once._bucket(message_ids[n]) = first_bucket AND first_bucket >= 0, scope => consumer,
                --   key => message_ids[n], fingerprint => fingerprints[n])
            END IF;
        END IF;
        -- expand: none_twice(names => message_ids)
        IF first_bucket > 0 AND NOT of_today THEN
            EXIT short WHEN NOT once._is_open(first_bucket);
        END IF;
        IF renamed THEN     -- no such id has a comma
            message_ids := string_to_array('pgonce:id:' || array_to_string(message_ids, ',pgonce:id:'), ',');
        END IF;
        plain := true;
        IF first_bucket = 0 THEN
            first_fence := once._first_fence();
            -- expand: receive_all(into => once.intent_d0, bucket => 0, fence => first_fence)
        ELSIF of_today THEN
            -- expand: receive_all(into => once.intent, bucket => once._today(), fence => 1)
        ELSE
            -- expand: receive_all(into => once.intent, bucket => first_bucket, fence => 1)
        END IF;
        IF FOUND THEN
            verdict := 'process';
            FOR n IN 1 .. size LOOP
                ordinal := n;
                counted := nextval('once.counted_process');     -- an assignment starts no query
                RETURN NEXT;
            END LOOP;
            RETURN;
        END IF;
    END;

    behind := '{}';
    IF plain THEN
        last_bucket := first_bucket;
        buckets := array_fill(first_bucket, ARRAY[size]);
        codes := array_fill(NULL::text, ARRAY[size]);
        firsts := ARRAY(SELECT generate_series(1, size));
        takeable := array_fill(true, ARRAY[size]);
    ELSE
        IF opaque THEN
            message_ids := ARRAY(SELECT CASE WHEN once._bucket(u.id) > 0 THEN 'pgonce:id:' || u.id ELSE u.id END
                                   FROM unnest(message_ids) WITH ORDINALITY AS u (id, n) ORDER BY u.n);
        END IF;
        today := floor(date_part('epoch', now) / 86400);
        IF once._is_new_day() THEN
            PERFORM once._make_days(NULL);
        END IF;
        today_open := once._has_day('intent', today);       -- computed once, since most keys are of today
        SELECT array_agg(c.bucket ORDER BY c.ord), min(c.bucket), max(c.bucket), array_agg(c.code ORDER BY c.ord),
               array_agg(c.first_ord ORDER BY c.ord), array_agg(c.takeable ORDER BY c.ord), bool_and(c.takeable)
          INTO buckets, first_bucket, last_bucket, codes, firsts, takeable, plain
          FROM (SELECT n.ord, n.bucket, n.code, n.first_ord,
                       CASE WHEN n.code IS NULL AND n.first_ord = n.ord
                                 AND CASE WHEN n.bucket = today THEN today_open
                                          ELSE n.bucket = 0 OR (n.bucket < today
                                               AND once._has_day('intent', n.bucket)) END
                            THEN pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, n.id))
                            ELSE false END AS takeable
                  FROM (SELECT b.*, min(b.ord) OVER (PARTITION BY b.id COLLATE "C", b.code IS NULL)::integer AS first_ord
                          FROM (SELECT u.id, u.ord, u.bucket,
                                       CASE WHEN (u.bucket >= 0) IS NOT TRUE THEN 'P4001'
                                            WHEN (octet_length(u.fingerprint) BETWEEN 16 AND 64) IS NOT TRUE
                                            THEN 'P4003' END AS code
                                  FROM (SELECT e.*, once._bucket(e.id) AS bucket
                                          FROM unnest(message_ids, fingerprints) WITH ORDINALITY AS e (id, fingerprint, ord)
                                        OFFSET 0) AS u) AS b) AS n) AS c;
    END IF;

    -- A new statement, now that the locks are held.
    SELECT array_agg(CASE WHEN s.state IS NULL THEN NULL WHEN s.fingerprint <> u.fingerprint THEN 'P4050'
                          WHEN s.state = 'succeeded' THEN 'duplicate' ELSE 'P4099' END ORDER BY u.ord),
           count(*) FILTER (WHERE s.state IS NULL)
      INTO stored, fresh
      FROM unnest(message_ids, fingerprints, buckets, codes)
           WITH ORDINALITY AS u (id, fingerprint, bucket, code, ord)
      LEFT JOIN LATERAL (SELECT i.state, i.fingerprint FROM once.intent AS i
                          WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C"
                            AND i.key = u.id COLLATE "C" AND i.bucket = u.bucket
                            AND i.bucket BETWEEN first_bucket AND last_bucket LIMIT 1) AS s ON u.code IS NULL;
    IF EXISTS (SELECT FROM once.parked_message AS p WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C")
    THEN
        plain := false;
        SELECT array_agg(CASE WHEN p.state IS NOT NULL
                              THEN CASE WHEN p.fingerprint = u.fingerprint THEN 'parked' ELSE 'P4050' END
                              WHEN (SELECT true FROM once.parked_message AS k
                                            WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                              AND k.key_hash = hashtextextended(u.key COLLATE "C", 0)
                                              AND NOT (skip_dead AND k.state = 'dead')
                                            ORDER BY k.key_hash, k.position LIMIT 1) THEN 'blocked' END ORDER BY u.ord)
          INTO held
          -- BETWEEN, LIMIT and the order: see once._promote.
          FROM unnest(message_ids, keys, fingerprints) WITH ORDINALITY AS u (id, key, fingerprint, ord)
          LEFT JOIN LATERAL (SELECT m.state, m.fingerprint FROM once.parked_message AS m
                              WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C"
                                AND m.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                              ORDER BY m.message_id LIMIT 1) AS p ON true;
    END IF;

    IF plain AND NOT ('P4050' = ANY (stored) OR 'P4099' = ANY (stored)) IS TRUE THEN
        chosen := NULL;
        RETURN QUERY SELECT u.ord::integer, coalesce(u.stored, 'process'), NULL
                       FROM unnest(stored) WITH ORDINALITY AS u (stored, ord);
    ELSE
        verdicts := array_fill(NULL::text, ARRAY[size]);
        chosen := array_fill(false, ARRAY[size]);
        fresh := 0;
        FOR n IN 1 .. size LOOP
            ordinal := n;
            verdict := stored[n];
            code := codes[n];
            IF code IS NULL AND verdict IS NULL AND NOT takeable[n]
               AND (firsts[n] = n OR verdicts[firsts[n]] NOT IN ('process', 'blocked', 'parked')) THEN
                -- Locked by another, or of a day that is not plainly open.
                verdict := once._receivable(tenant, consumer, message_ids[n], buckets[n], fingerprints[n]);
                IF verdict = 'new' THEN
                    verdict := CASE WHEN firsts[n] < n THEN 'P4029' END;
                ELSIF verdict = 'P4029' AND held[n] IN ('parked', 'P4050') THEN
                    verdict := NULL;
                END IF;
            END IF;
            IF code IS NULL AND verdict IS NULL THEN
                IF held[n] IN ('parked', 'P4050') THEN
                    verdict := held[n];
                ELSIF firsts[n] < n THEN
                    -- The same message again, which cannot be looked up yet.
                    verdict := CASE WHEN verdicts[firsts[n]] = 'blocked' THEN 'blocked'
                                    WHEN fingerprints[n] = fingerprints[firsts[n]] THEN 'duplicate' ELSE 'P4050' END;
                ELSIF held[n] = 'blocked' OR keys[n] = ANY (behind) THEN
                    verdict := 'blocked';
                ELSE
                    verdict := 'process';
                    chosen[n] := true;
                    fresh := fresh + 1;
                END IF;
            END IF;
            code := coalesce(code, CASE WHEN verdict LIKE 'P4%' THEN verdict END);
            verdicts[n] := coalesce(code, verdict);
            verdict := CASE code WHEN 'P4050' THEN 'mismatch' WHEN 'P4029' THEN 'processing_active' ELSE
                       CASE WHEN code IS NULL THEN verdict ELSE 'invalid' END END;
            IF keys[n] IS NOT NULL AND verdict NOT IN ('process', 'duplicate', 'parked')
               AND NOT (skip_dead AND verdict IN ('mismatch', 'invalid')) THEN
                behind := behind || keys[n];
            END IF;
            RETURN NEXT;
        END LOOP;
    END IF;

    -- expand: insert_done(into => once.intent)
    SELECT now, now, now, u.bucket, CASE WHEN u.bucket > 0 THEN 1 ELSE once._first_fence() END, 1, 'succeeded', tenant, consumer,
           u.id, u.fingerprint, u.traceparent
      FROM unnest(message_ids, fingerprints, buckets, stored, chosen, traceparents)
           AS u (id, fingerprint, bucket, stored, chosen, traceparent)
     WHERE coalesce(u.chosen, u.stored IS NULL)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS entered = ROW_COUNT;
    IF entered <> fresh THEN
        -- Their locks were held and no row existed: only a caller that wrote to the table directly gets here.
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: the inbox has changed under its locks',
            DETAIL = format('consumer=%s: %s of %s messages were entered', quote_nullable(left(consumer, 80)), entered, fresh),
            HINT = 'Roll back and receive the batch again.';
    END IF;
    PERFORM once._count('process', fresh);
    IF verdicts IS NULL THEN
        PERFORM once._count('duplicate', size - fresh);
    ELSE
        PERFORM once._count('duplicate', cardinality(array_positions(verdicts, 'duplicate')));
        PERFORM once._count('message_mismatch', cardinality(array_positions(verdicts, 'P4050')));
    END IF;
END $$;
