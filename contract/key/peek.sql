-- SPDX-License-Identifier: PostgreSQL
-- once.peek(scope, key, tenant): the stored state of an intent; changes nothing, locks nothing. Verdicts:
--   replay_success, final_failure  it is finished: the outcome is in the other columns
--   retryable_failure              it failed without an effect: the next attempt may run
--   processing_active              an attempt holds the lease
--   processing_stale               the lease has passed without a report
--   in_doubt                       the outcome is unknown
--   expired                        the key's day is retired
--   absent                         nothing is stored; an attempt in an open transaction does not show
-- Raises P4000, P4001, P4003.
CREATE FUNCTION once.peek(scope text, key text, tenant text DEFAULT '') RETURNS once.peeked
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    RETURN once._peek(tenant, scope, key, bucket);
END $$;
