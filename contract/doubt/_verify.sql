-- SPDX-License-Identifier: PostgreSQL
-- once._verify(policy, tenant, scope, key): asks the scope's verify function whether the effect of a stale or doubtful intent happened.
-- An answer other than the three words counts as 'unknown'. An exception of the function, and an outcome that cannot be stored, are
-- raised to the caller.
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
