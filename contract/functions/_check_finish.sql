-- SPDX-License-Identifier: PostgreSQL
-- once._check_finish(...): the thorough half of once.finish's checks: raises what is wrong, and returns the key's bucket
-- where nothing is (a large body that its scope allows).
CREATE FUNCTION once._check_finish(tenant text, scope text, key text, state text, body bytea) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM once._check_size(tenant, scope, key, body);
    IF (state IN ('succeeded', 'failed_final', 'failed_retryable')) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('pgonce: an intent cannot be finished as %s', quote_nullable(left(state, 80))),
            DETAIL = format('tenant=%L scope=%L key=%L', tenant, scope, key),
            HINT = 'state is one of succeeded, failed_final, failed_retryable.';
    END IF;
    IF NOT pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN
        PERFORM once._refuse('P4010', tenant, scope, key, 'another attempt is running: call once.begin first');
    END IF;
    PERFORM once._refuse_day(tenant, scope, key, bucket);
    RETURN bucket;
END $$;
