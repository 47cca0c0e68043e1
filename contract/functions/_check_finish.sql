-- SPDX-License-Identifier: PostgreSQL
-- once._check_finish(...): raises what is wrong with a call of once.finish; returns where nothing is (a large body, a
-- bound role).
CREATE FUNCTION once._check_finish(tenant text, scope text, key text, bucket integer, fingerprint bytea, state text,
    body bytea)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, fingerprint);
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
END $$;
