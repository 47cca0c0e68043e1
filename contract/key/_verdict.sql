-- SPDX-License-Identifier: PostgreSQL
-- once._verdict(...): the verdict for an attempt that finds this row. Only this function decides it; inlined. A mismatch takes precedence
-- over everything else. For 'verify' and 'abandoned' the caller must act.
CREATE FUNCTION once._verdict(same boolean, state once.state, lease_until timestamptz, now timestamptz, attempts integer,
    max_attempts integer, on_stale text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN NOT same THEN 'mismatch'
        WHEN state = 'succeeded' THEN 'replay_success'
        WHEN state = 'failed_final' THEN 'final_failure'
        WHEN state = 'in_doubt' THEN 'in_doubt'
        WHEN state = 'failed_retryable' THEN CASE WHEN attempts >= max_attempts
            THEN 'abandoned' ELSE 'retryable_failure' END
        WHEN state = 'processing' AND lease_until > now THEN 'processing_active'
        WHEN state = 'processing' THEN CASE
            WHEN on_stale = 'verify' THEN 'verify'
            WHEN on_stale = 'in_doubt' OR attempts >= max_attempts THEN 'in_doubt'
            ELSE 'processing_stale' END
        ELSE 'unknown'
    END
$$;
