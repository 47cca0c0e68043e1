-- SPDX-License-Identifier: PostgreSQL
-- once._record_attempt(before, to_state, verified): notes that a new attempt has begun (or, in the
-- same transaction, ended) an intent that had an attempt before: always where it took over from one
-- that fell silent or is in doubt; of retries after a failure, which may be many, the first ones
-- and then ever fewer; none after work that never started (once.release), which is not counted
-- either. verified: what verify answered, if it was asked.
CREATE FUNCTION once._record_attempt(before once.intent, to_state once.state, verified text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    nth integer := before.attempts + 1;     -- not the fence: that of the first attempt may be any (once._first_fence)
BEGIN
    IF before.state IN ('processing', 'in_doubt') THEN
        PERFORM once._record(before.tenant, before.scope, before.key, before.fence + 1, before.state, to_state,
            concat_ws(': ', format(CASE before.state WHEN 'processing' THEN 'attempt %s ended without a report'
                ELSE 'attempt %s was in doubt' END, before.attempts), 'verify answered ' || verified), 'takeover', before);
    ELSIF before.error_code IS DISTINCT FROM 'released' AND (nth <= 3 OR nth & (nth - 1) = 0) THEN
        PERFORM once._record(before.tenant, before.scope, before.key, before.fence + 1, before.state, to_state,
            concat_ws(': ', format('attempt %s failed', before.attempts), before.error_code), 'retry', before);
    END IF;
END $$;
