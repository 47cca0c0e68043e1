-- SPDX-License-Identifier: PostgreSQL
-- once._record_attempt(before, to_state, verified): records that a new attempt began an intent that had an attempt before, or ended it in
-- the same transaction. A takeover from an attempt that fell silent or is in doubt is always recorded. Of retries after a failure, which
-- may be many, the first three are recorded and then fewer and fewer. Work that never started (once.release) is not recorded, and not
-- counted either. verified: the answer of verify, if it was asked.
CREATE FUNCTION once._record_attempt(before once.intent, to_state once.state, verified text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    nth integer := before.attempts + 1;     -- not the fence: the first attempt may have any (once._first_fence)
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
