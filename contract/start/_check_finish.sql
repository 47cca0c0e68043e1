-- SPDX-License-Identifier: PostgreSQL
-- once._check_finish(...): the thorough half of once.finish's checks: raises where an intent cannot be finished so, or not on this
-- day any more.
CREATE FUNCTION once._check_finish(tenant text, scope text, key text, bucket integer, state text, outcome once.outcome) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._check_outcome(tenant, scope, key, outcome);
    IF (state IN ('succeeded', 'failed_final', 'failed_retryable')) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('pgonce: an intent cannot be finished as %s', quote_nullable(left(state, 80))),
            DETAIL = format('tenant=%L scope=%L key=%L', tenant, scope, key),
            HINT = 'state is one of succeeded, failed_final, failed_retryable.';
    END IF;
    PERFORM once._refuse_day(tenant, scope, key, bucket);
END $$;
