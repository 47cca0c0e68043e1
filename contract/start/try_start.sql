-- SPDX-License-Identifier: PostgreSQL
-- once.try_start(scope, key, fingerprint, tenant, traceparent): once.start for callers that cannot use an error, since an error aborts
-- their transaction: it returns every decision in the row, and raises only for bad input and races (P4000 P4001 P4003, P4014, P4098,
-- 40001).
--   proceed            do the effect, then once.finish(...), then COMMIT
--   replay_success     the intent succeeded: the stored outcome is in the other columns
--   final_failure      it failed for good: the stored outcome is in the other columns. A new intent needs a new key
--   processing_active  another attempt is running: try again after a short delay
--   in_doubt           the outcome is unknown: see once.resolve. No attempt runs
--   mismatch           the key was first used with another request
--   expired            the key is older than the retention
-- Check the verdict: only 'proceed' allows the effect, and once.finish refuses all others.
CREATE FUNCTION once.try_start(scope text, key text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS once.started
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
-- expand: start_body(raises => false)
$$;
