-- SPDX-License-Identifier: PostgreSQL
-- once._verify(policy, tenant, scope, key): asks the scope's verify function whether the effect of an intent that is
-- stale or in doubt happened. An answer outside the three words is 'unknown'; an exception of the function is the caller's,
-- and so is an outcome that cannot be stored.
CREATE FUNCTION once._verify(policy once.scope, tenant text, scope text, key text) RETURNS once.verification LANGUAGE plpgsql AS $$
DECLARE
    found_out once.verification;
BEGIN
    EXECUTE format('SELECT * FROM %s($1, $2, $3)', (policy.verify || '(text,text,text)')::regprocedure::oid::regproc)
        INTO found_out USING tenant, scope, key;
    IF found_out.answer IS NULL OR found_out.answer NOT IN ('happened', 'absent', 'unknown') THEN
        found_out.answer := 'unknown';
    ELSIF found_out.answer = 'happened' THEN
        PERFORM once._check_outcome(tenant, scope, key, once._outcome_of(found_out));
    END IF;
    RETURN found_out;
END $$;
