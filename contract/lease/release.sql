-- SPDX-License-Identifier: PostgreSQL
-- once.release(scope, key, fence, tenant): gives back a claim whose work certainly never started: the next attempt may run at once, and
-- this one is not counted. false: the intent is no longer this attempt's. The row and its fence stay, so a zombie of this attempt stays
-- shut out. A claim that took over from an attempt that fell silent (processing_stale) is left as it was found, stale: about the silent
-- one nothing new is known. An intent that was put in doubt meanwhile is not released: once.fail, retryable, ends the doubt as long as it
-- was not decided otherwise.
CREATE FUNCTION once.release(scope text, key text, fence integer, tenant text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    now timestamptz := clock_timestamp();
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    UPDATE once.intent AS i
       SET state = CASE WHEN i.error_code = 'stale' THEN i.state ELSE 'failed_retryable' END, attempts = i.attempts - 1,
           lease_until = CASE WHEN i.error_code = 'stale' THEN now END, updated_at = now,
           completed_at = CASE WHEN i.error_code = 'stale' THEN NULL ELSE now END,
           error_code = CASE WHEN i.error_code = 'stale' THEN i.error_code ELSE 'released' END,
           error_message = 'the work never started'
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fence = fence AND i.state = 'processing';
    RETURN FOUND;
END $$;
