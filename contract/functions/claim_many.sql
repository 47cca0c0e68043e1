-- SPDX-License-Identifier: PostgreSQL
-- once.claim_many(scope[], key[], fingerprint[], owner, lease, retention, tenant): once.claim for many intents in one
-- statement and so one commit. Returns one row per element, in order (ord from 1), with the verdicts of once.claim, and
-- besides: 'mismatch', and 'invalid' with the SQLSTATE in error_code. A bad element never spoils its neighbours. The
-- same key twice is one claim: the second finds the first ('processing_active', or 'mismatch'). Raises only for the
-- batch as a whole (22023, P4003).
--
-- Three statements for the whole batch, however large: check and lock; insert what is new; and only for what is left
-- one call each. The locks are taken before the statement that inserts, so no insert ever waits for another
-- transaction. The settings pin the plans to index look-ups: one made while the table was empty would stay a sequential
-- scan. jit: a disabled scan looks expensive enough to be compiled.
CREATE FUNCTION once.claim_many(scope text[], key text[], fingerprint bytea[], owner text DEFAULT NULL,
    lease interval DEFAULT NULL,
    retention interval DEFAULT NULL, tenant text DEFAULT '')
RETURNS TABLE (ord integer, verdict text, fence integer, state text, response_status integer, response_headers jsonb,
    response_body bytea,
    result_type text, result_id text, error_code text, error_message text, lease_until timestamptz, attempts integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0),
    once._length(fingerprint, 0));
    buckets integer[];
    codes text[];
    takeable boolean[];
    claimed boolean[];
    now timestamptz := clock_timestamp();
    today integer := floor(date_part('epoch', now) / 86400);
    lease_default interval := (once._policy('')).lease;
BEGIN
    PERFORM once._check_term('lease', lease, '7 days');
    PERFORM once._check_term('retention', retention, '100 years');
    owner := left(owner, 255);

    SELECT array_agg(c.bucket ORDER BY c.ord), array_agg(c.code ORDER BY c.ord),
           array_agg(CASE WHEN c.code IS NULL AND c.nth = 1 AND c.open
                          THEN pg_try_advisory_xact_lock(once._lock_id(tenant, c.scope,
                              c.key)) ELSE false END ORDER BY c.ord)
      INTO buckets, codes, takeable
      FROM (SELECT b.*, CASE WHEN (length(b.scope) BETWEEN 1 AND 255) IS NOT TRUE THEN 'P4000'
                             WHEN b.bucket IS NULL OR b.bucket < 0 THEN 'P4001'
                             WHEN (octet_length(b.fingerprint) BETWEEN 16 AND 64) IS NOT TRUE THEN 'P4003' END AS code,
                   row_number() OVER (PARTITION BY b.scope, b.key ORDER BY b.ord) AS nth,
                   b.bucket = 0 OR (b.bucket <= today AND to_regclass('once.intent_d' || b.bucket) IS NOT NULL) AS open
              FROM (SELECT u.ord, u.scope COLLATE "C" AS scope, u.key COLLATE "C" AS key, u.fingerprint,
                  once._bucket(u.key) AS bucket
                      FROM unnest(scope, key, fingerprint) WITH ORDINALITY AS u (scope, key, fingerprint,
                          ord)) AS b) AS c;

    WITH fresh AS (
        INSERT INTO once.intent AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts, state,
                                      tenant, scope, key, fingerprint, owner)
        SELECT now, now, now + retention, now + coalesce(lease, p.lease, lease_default), u.bucket, 1, 1, 'processing',
               tenant, u.scope, u.key, u.fingerprint, owner
          FROM unnest(scope, key, fingerprint, buckets, takeable) AS u (scope, key, fingerprint, bucket, takeable)
          LEFT JOIN once.scope AS p ON p.scope = u.scope COLLATE "C"
         WHERE u.takeable
           -- LIMIT keeps this a look-up per element: as a join, a plan made on an empty table would read it whole.
           AND (SELECT true FROM once.intent AS i
                 WHERE i.tenant = tenant COLLATE "C" AND i.scope = u.scope COLLATE "C" AND i.key = u.key COLLATE "C"
                   AND i.bucket = u.bucket LIMIT 1) IS NULL
        ON CONFLICT DO NOTHING
        RETURNING i.scope, i.key)
    SELECT array_agg(u.takeable AND f.key IS NOT NULL ORDER BY u.ord) INTO claimed
      FROM unnest(scope, key, takeable) WITH ORDINALITY AS u (scope, key, takeable, ord)
      LEFT JOIN fresh AS f ON u.takeable AND f.scope = u.scope COLLATE "C" AND f.key = u.key COLLATE "C";

    FOR n IN 1 .. size LOOP
        ord := n;
        verdict := NULL; fence := NULL; state := NULL; attempts := NULL; lease_until := NULL;
        response_status := NULL; response_headers := NULL; response_body := NULL;
        result_type := NULL; result_id := NULL; error_code := NULL; error_message := NULL;
        IF claimed[ord] THEN
            verdict := 'new_claim';
            fence := 1;
            state := 'processing';
            attempts := 1;
            lease_until := now + coalesce(lease, (SELECT p.lease FROM once.scope AS p
                                                   WHERE p.scope = scope[ord] COLLATE "C"), lease_default);
        ELSIF codes[ord] IS NULL THEN
            SELECT c.* INTO verdict, fence, state, response_status, response_headers, response_body, result_type,
                result_id, error_code,
                            error_message, lease_until, attempts
              FROM once._claim(tenant, scope[ord], key[ord], buckets[ord], fingerprint[ord], owner, lease,
                  retention) AS c;
        END IF;
        IF codes[ord] IS NOT NULL OR verdict IN ('future', 'missing', 'unknown') THEN
            error_code := coalesce(codes[ord], CASE verdict WHEN 'future' THEN 'P4001' WHEN 'missing'
                THEN 'P4098' ELSE 'P4099' END);
            SELECT e.message INTO error_message FROM once.errors() AS e WHERE e.code = error_code COLLATE "C";
            verdict := 'invalid';
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
