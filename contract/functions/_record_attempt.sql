-- SPDX-License-Identifier: PostgreSQL
-- once._record_attempt(before, to_state, verified): notes that a new attempt has begun (or, in the same transaction, ended) an
-- intent that had an attempt before: always where it took over from one that fell silent; of retries after a failure, which
-- may be many, the first ones and then ever fewer. verified: what verify answered, if it was asked.
CREATE FUNCTION once._record_attempt(before once.intent, to_state once.state, verified text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    next_fence integer := before.fence + 1;
BEGIN
    IF before.state = 'processing' THEN
        PERFORM once._record(before.tenant, before.scope, before.key, next_fence, before.state, to_state,
            concat_ws(': ', format('attempt %s ended without a word', before.fence), 'verify answered ' || verified), 'takeover',
            before);
    ELSIF next_fence <= 3 OR next_fence & (next_fence - 1) = 0 THEN
        PERFORM once._record(before.tenant, before.scope, before.key, next_fence, before.state, to_state,
            concat_ws(': ', format('attempt %s failed', before.fence), before.error_code), 'retry', before);
    END IF;
END $$;
