-- SPDX-License-Identifier: PostgreSQL
-- once.claim_many(scope[], key[], fingerprint[], owner, lease, retention, tenant, traceparents[], takeover): once.claim for many intents
-- in one statement and so one commit. Returns one row per element, in order (ord from 1), with the verdicts of once.claim, and two more:
-- 'mismatch', and 'invalid' with the SQLSTATE in error_code. A bad element never affects its neighbours, except if its scope has a verify
-- function that raises when it is asked about a stale attempt: then the whole batch fails with that error. The same key twice is one
-- claim: the second finds the first ('processing_active', or 'mismatch'). Otherwise it raises only for the batch as a whole (22023,
-- P4003). kept_ms, for a replay: how many milliseconds the outcome is kept at least, at most a day; a caller may serve a copy for that
-- long. NULL if the intent has other fingerprints too (a copy could not tell a mismatch from them), or is in the archive.
--
-- Why it is written so: in the plain case one statement suffices for any size (two if the scope's policy gives the lease). First a loop
-- checks and locks; the locks are taken before the statement that inserts, so no insert ever waits for another transaction. The statement
-- inserts the new intents, all or nothing: under READ COMMITTED its snapshot is later than the locks, so it sees every row that exists, and
-- it needs no ON CONFLICT, which costs each row a third look at the index. Keys of bucket 0 go to their table by name, and a plan for
-- today's keys opens one partition. Otherwise a statement looks, inserts the new intents, and returns the plain verdicts: a new claim, a
-- replay, another attempt at work, a mismatch. A case that needs a decision under the row's lock (a takeover, a doubt, a closed day) goes
-- to once._claim. The settings pin the plans to index look-ups: a plan made while the table was empty would stay a sequential scan. jit is
-- off because a disabled scan looks expensive enough to be compiled.
CREATE FUNCTION once.claim_many(scope text[], key text[], fingerprint bytea[], owner text DEFAULT NULL, lease interval DEFAULT NULL,
    retention interval DEFAULT NULL, tenant text DEFAULT '', traceparents text[] DEFAULT NULL, takeover boolean DEFAULT NULL)
RETURNS TABLE (ord integer, verdict text, fence integer, state text, response_status integer, response_body bytea,
    response_headers jsonb, result_type text, result_id text, error_code text, error_message text, lease_until timestamptz,
    attempts integer, traceparent text, kept_ms integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := cardinality(key);
    plain boolean;              -- all locks are held, all keys are of one bucket, and of an open day
    first_bucket integer;
    last_bucket integer;
    of_today boolean;
    buckets integer[];
    codes text[];
    takeable boolean[];
    now timestamptz := clock_timestamp();
    today integer;
    today_open boolean;
    fresh bigint;
    counted bigint;
    others text[];              -- the other verdicts to count
BEGIN
    IF once._quick_check_batch(tenant, size, array_dims(scope), array_dims(key), array_dims(fingerprint),
                      CASE WHEN traceparents IS NULL THEN array_dims(key) ELSE array_dims(traceparents) END) IS NOT TRUE THEN
        size := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0), once._length(fingerprint, 0),
                                  once._length(traceparents, once._length(key, 0)));
        IF size = 0 THEN
            RETURN;
        END IF;
    END IF;
    IF lease IS NOT NULL OR retention IS NOT NULL THEN
        IF retention IS NOT NULL OR NOT once._is_term(lease, '7 days') THEN
            PERFORM once._check_term('lease', lease, '7 days');
            PERFORM once._check_term('retention', retention, '100 years');
        END IF;
    END IF;
    owner := left(owner, 255);

    IF traceparents IS NOT NULL THEN
        FOR n IN 1 .. size LOOP
            traceparents[n] := once._trace(traceparents[n]);
        END LOOP;
    END IF;

    <<short>>       -- A scope of up to 255 bytes is short enough; in a longer one the characters are counted.
    BEGIN
        EXIT short WHEN (current_setting('transaction_isolation') = 'read committed' AND current_setting('transaction_read_only') = 'off'
                         AND (lease IS NOT NULL OR scope[1] = ALL (scope))) IS NOT TRUE;
        IF key[1] COLLATE "C" NOT LIKE '________-____-7%' THEN
            first_bucket := 0;
            -- expand: lock_all(fits => scope[n] <> '' AND octet_length(scope[n]) <= 255 AND once._is_undated(key[n]), scope => scope[n],
            --   key => key[n], fingerprint => fingerprint[n])
        ELSE
            first_bucket := once._match_day(key[1], once._today());
            of_today := first_bucket IS NOT NULL;
            IF of_today THEN
                -- expand: lock_all(fits => scope[n] <> '' AND octet_length(scope[n]) <= 255
                --   AND key[n] COLLATE "C" LIKE '________-____-7___-____-____________' AND once._is_dated(key[n])
                --   AND once._match_day(key[n], once._today()) = first_bucket, scope => scope[n], key => key[n],
                --   fingerprint => fingerprint[n])
                of_today := once._is_today(first_bucket);
            ELSE
                first_bucket := once._bucket(key[1]);
                -- expand: lock_all(fits => scope[n] <> '' AND octet_length(scope[n]) <= 255
                --   AND once._bucket(key[n]) = first_bucket AND first_bucket >= 0, scope => scope[n], key => key[n],
                --   fingerprint => fingerprint[n])
            END IF;
        END IF;
        -- expand: none_twice(names => key)
        IF first_bucket > 0 AND NOT of_today THEN
            EXIT short WHEN NOT once._is_open(first_bucket);
        END IF;
        plain := true;
        IF lease IS NULL THEN       -- as once._policy
            SELECT now + p.lease INTO STRICT lease_until
              FROM once.scope AS p WHERE p.scope IN ('', scope[1] COLLATE "C") ORDER BY p.scope DESC LIMIT 1;
        ELSE
            lease_until := now + lease;
        END IF;
        IF first_bucket = 0 THEN
            fence := once._first_fence();
            -- expand: claim_all(into => once.intent_d0, bucket => 0)
        ELSE
            fence := 1;
            IF of_today THEN
                -- expand: claim_all(into => once.intent, bucket => once._today())
            ELSE
                -- expand: claim_all(into => once.intent, bucket => first_bucket)
            END IF;
        END IF;
        IF FOUND THEN
            verdict := 'new_claim';
            state := 'processing';
            attempts := 1;
            FOR n IN 1 .. size LOOP
                ord := n;
                traceparent := traceparents[n];
                counted := nextval('once.counted_new');     -- an assignment starts no query
                RETURN NEXT;
            END LOOP;
            RETURN;
        END IF;
    END;

    fresh := 0;
    others := '{}';
    IF plain THEN
        last_bucket := first_bucket;
        buckets := array_fill(first_bucket, ARRAY[size]);
        codes := array_fill(NULL::text, ARRAY[size]);
        takeable := array_fill(true, ARRAY[size]);
    ELSE
        today := floor(date_part('epoch', now) / 86400);
        IF once._is_new_day() THEN
            PERFORM once._make_days(NULL);
        END IF;
        today_open := once._has_day('intent', today);       -- computed once, since most keys are of today
        SELECT array_agg(c.bucket ORDER BY c.ord), min(c.bucket), max(c.bucket), array_agg(c.code ORDER BY c.ord),
               array_agg(CASE WHEN c.code IS NULL AND c.nth = 1
                                   AND CASE WHEN c.bucket = today THEN today_open
                                            ELSE c.bucket = 0 OR (c.bucket < today
                                                 AND once._has_day('intent', c.bucket)) END
                              THEN pg_try_advisory_xact_lock(once._lock_id(tenant, c.scope, c.key))
                              ELSE false END ORDER BY c.ord)
          INTO buckets, first_bucket, last_bucket, codes, takeable
          FROM (SELECT b.*, once._wrong_element(b.scope, b.bucket, b.fingerprint) AS code,
                       row_number() OVER (PARTITION BY b.scope COLLATE "C", b.key COLLATE "C" ORDER BY b.ord) AS nth
                  FROM (SELECT u.*, once._bucket(u.key) AS bucket
                          FROM unnest(scope, key, fingerprint)
                               WITH ORDINALITY AS u (scope, key, fingerprint, ord) OFFSET 0) AS b) AS c;
    END IF;

    FOR ord, verdict, fence, state, response_status, response_body, response_headers, result_type, result_id,
        error_code, error_message, lease_until, attempts, traceparent, kept_ms IN
        WITH element AS MATERIALIZED (
            SELECT u.*, once._same(s.fingerprint, s.redirects, u.fingerprint) AS same, s.fence, s.state, s.response_status,
                   s.response_body, s.response_headers, s.result_type, s.result_id, s.error_code, s.error_message, s.lease_until,
                   s.attempts,
                   s.traceparent,
                   CASE WHEN s.state IN ('succeeded', 'failed_final') AND s.redirects IS NULL
                        THEN least(86400000, greatest(0, 1000 * date_part('epoch', s.completed_at - now + coalesce(
                                 s.expires_at - s.created_at,
                                 (SELECT p.retention FROM once.scope AS p WHERE p.scope = u.scope COLLATE "C"),
                                 (SELECT d.retention FROM once.scope AS d WHERE d.scope = '')))))::integer END AS kept_ms
              FROM unnest(scope, key, fingerprint, buckets, codes, takeable, traceparents)
                   WITH ORDINALITY AS u (scope, key, fingerprint, bucket, code, takeable, trace, ord)
              -- The range is known when the look-up starts, so that only the leaves of this batch
              -- are opened. LIMIT keeps this a look-up per element: as a join, a plan made on an
              -- empty table would read it whole.
              LEFT JOIN LATERAL (SELECT i.* FROM once.intent AS i
                                  WHERE i.tenant = tenant COLLATE "C" AND i.scope = u.scope COLLATE "C"
                                    AND i.key = u.key COLLATE "C" AND i.bucket = u.bucket
                                    AND i.bucket BETWEEN first_bucket AND last_bucket LIMIT 1) AS s
                     ON u.code IS NULL),
        fresh AS (
            -- expand: insert_claim(into => once.intent)
            SELECT now, now, now + retention,
                   now + coalesce(lease, p.lease, (SELECT d.lease FROM once.scope AS d WHERE d.scope = '')), e.bucket,
                   CASE WHEN e.bucket > 0 THEN 1 ELSE once._first_fence() END, 1, 'processing', tenant, e.scope, e.key,
                   e.fingerprint, owner, e.trace
              FROM element AS e LEFT JOIN once.scope AS p ON p.scope = e.scope COLLATE "C"
             WHERE e.takeable AND e.state IS NULL
            ON CONFLICT DO NOTHING
            RETURNING i.scope, i.key, i.fence, i.lease_until)
        SELECT e.ord, CASE WHEN f.key IS NOT NULL THEN 'new_claim'
                           WHEN e.state IS NOT NULL
                           THEN once._verdict(e.same, e.state, e.lease_until, now, NULL, NULL, NULL) END,
               coalesce(e.fence, f.fence), coalesce(e.state, 'processing'), e.response_status, e.response_body,
               e.response_headers, e.result_type, e.result_id, e.error_code, e.error_message,
               coalesce(e.lease_until, f.lease_until), coalesce(e.attempts, 1),
               CASE WHEN f.key IS NOT NULL THEN e.trace ELSE e.traceparent END, e.kept_ms
          FROM element AS e LEFT JOIN fresh AS f
            ON e.takeable AND f.scope = e.scope COLLATE "C" AND f.key = e.key COLLATE "C"
         ORDER BY e.ord
    LOOP
        IF (verdict IN ('new_claim', 'replay_success', 'final_failure', 'processing_active')) IS NOT TRUE THEN
            fence := NULL; state := NULL; attempts := NULL; lease_until := NULL;
            response_status := NULL; response_body := NULL; response_headers := NULL;
            result_type := NULL; result_id := NULL; error_code := NULL; error_message := NULL;
            traceparent := NULL; kept_ms := NULL;
            IF codes[ord] IS NULL AND verdict = 'mismatch' THEN
                others := others || verdict;
            ELSE
                SELECT c.* INTO verdict, fence, state, response_status, response_body, response_headers, result_type,
                                result_id, error_code, error_message, lease_until, attempts, traceparent
                  FROM once._claim_element(tenant, scope[ord], key[ord], buckets[ord], fingerprint[ord], owner, lease,
                                           retention, traceparents[ord], takeover) AS c;
            END IF;
        ELSIF verdict = 'new_claim' THEN
            fresh := fresh + 1;
        ELSE
            others := others || verdict;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF fresh > 0 THEN
        PERFORM once._count('new_claim', fresh);
    END IF;
    IF others <> '{}' THEN
        PERFORM once._count(u.verdict, count(*)) FROM unnest(others) AS u (verdict) GROUP BY u.verdict;
    END IF;
END $$;
