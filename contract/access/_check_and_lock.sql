-- SPDX-License-Identifier: PostgreSQL
-- once._check_and_lock(tenant, scope, key, fingerprint, holding): the entry check of the hot functions. Raises if a call's arguments are
-- invalid or the caller has no right to the tenant; returns the key's bucket. holding: also takes the intent's advisory lock, without
-- waiting, and returns NULL if another transaction has it.
--
-- Why it is written so: PL/pgSQL prepares an expression when a transaction first reaches it, which costs far more than to evaluate it,
-- and each function or operator less in an expression saves nearly 2,000 instructions. So start, finish and emit have their own check of
-- one expression for the usual arguments, and call this function for the others: a call from function to function costs 8,500. The quick
-- check accepts nothing invalid; for what it cannot judge (a bound role, a long name) it calls once._check.
CREATE FUNCTION once._check_and_lock(tenant text, scope text, key text, fingerprint bytea, holding boolean) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
DECLARE
    bucket integer;
BEGIN
    -- Only the part of once._bucket that this key needs. A key of today is found by comparison; for others the day is computed.
    IF key COLLATE "C" LIKE '________-____-7___-____-____________' THEN
        bucket := CASE WHEN once._is_dated(key) THEN once._match_day(key, once._today()) END;
        IF bucket IS NULL THEN
            bucket := once._bucket(key);
        END IF;
    ELSE
        bucket := once._bucket_of_other(key);
        IF bucket < 0 THEN
            PERFORM once._check(tenant, scope, key, bucket, fingerprint);
        END IF;
    END IF;
    IF (once._quick_check(tenant, scope, fingerprint) AND once._is_trusted(tenant)) IS NOT TRUE THEN
        PERFORM once._check(tenant, scope, key, bucket, fingerprint);
    END IF;
    IF holding THEN
        IF NOT pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN bucket;
END $$;
