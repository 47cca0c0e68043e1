-- SPDX-License-Identifier: PostgreSQL
-- once._recover_doubt(take, of_scope, of_tenant, after): the work of once.recover for intents in doubt: asks the verify function of each
-- scope that has one, unless the doubt still has a lease: until that has passed its attempt may still be at work, and an effect that is
-- absent now may still happen. As in once._recover, it first judges all intents without locking a row; then it stores each decision if
-- the row is still as it was judged.
CREATE FUNCTION once._recover_doubt(take integer, of_scope text, of_tenant text, after text)
RETURNS TABLE (tenant text, scope text, key text, fence integer, answer text, decided text, reason text, next text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '250 milliseconds';
    policy once.scope;
    doubt record;
    answers record;
    sources regclass[] := '{}';
    stored once.intent[] := '{}';
    verified once.verification[] := '{}';
    failures text[] := '{}';
    cursors text[] := '{}';
    onward text;
    n integer;
BEGIN
    FOR doubt IN SELECT d.* FROM once._doubtful(of_tenant, of_scope, NULL, NULL, NULL,
            least(greatest(coalesce(take, 100), 1), 1000), after) AS d LOOP
        onward := doubt.next;
        EXIT WHEN doubt.source IS NULL;
        policy := once._policy((doubt.stored).scope);
        CONTINUE WHEN once._serves((doubt.stored).tenant) IS NOT TRUE
                      OR NOT pg_try_advisory_xact_lock(once._lock_id((doubt.stored).tenant, (doubt.stored).scope,
                                                                  (doubt.stored).key))
                      OR NOT once._is_unchanged(doubt.source, doubt.stored);
        SELECT NULL::once.verification AS verified, 'its scope has no verify function' AS failure INTO answers;
        IF (doubt.stored).lease_until > clock_timestamp() THEN
            answers.failure := format('its attempt may still be at work until %s', (doubt.stored).lease_until);
        ELSIF policy.verify IS NOT NULL THEN
            SELECT a.* INTO answers FROM once._ask(policy, (doubt.stored).tenant, (doubt.stored).scope, (doubt.stored).key) AS a;
        END IF;
        sources := array_append(sources, doubt.source);
        stored := array_append(stored, doubt.stored);
        verified := array_append(verified, answers.verified);
        failures := array_append(failures, answers.failure);
        cursors := array_append(cursors, doubt.next);
        EXIT WHEN clock_timestamp() > deadline;
    END LOOP;
    FOR n IN 1 .. cardinality(stored) LOOP
        tenant := (stored[n]).tenant;
        scope := (stored[n]).scope;
        key := (stored[n]).key;
        fence := (stored[n]).fence;
        answer := (verified[n]).answer;
        next := cursors[n];
        IF answer = 'happened' THEN
            decided := 'succeeded';
            reason := 'verify: the effect happened';
            CONTINUE WHEN NOT once._decide(sources[n], stored[n], 'succeeded', reason, 'verify', once._outcome_of(verified[n]));
        ELSIF answer = 'absent' AND (stored[n]).attempts >= (once._policy(scope)).max_attempts THEN
            decided := 'abandoned';
            reason := format('verify answered absent, and %s attempts are used up', (stored[n]).attempts);
            CONTINUE WHEN NOT once._decide(sources[n], stored[n], 'failed_final', reason, 'abandon',
                ROW(NULL, NULL, NULL, NULL, NULL, 'abandoned', reason));
        ELSIF answer = 'absent' THEN
            decided := 'retry';
            reason := CASE WHEN once._day_state((stored[n]).bucket) = 'closed'
                           THEN 'verify answered absent, but its day is retired: nothing runs with this key again; use a new one'
                           ELSE 'verify answered absent' END;
            CONTINUE WHEN NOT once._decide(sources[n], stored[n], 'failed_retryable', reason, 'verify',
                ROW(NULL, NULL, NULL, NULL, NULL, 'verified', reason));
        ELSE
            decided := 'in_doubt';
            reason := coalesce(failures[n], 'verify answered unknown');
        END IF;
        RETURN NEXT;
    END LOOP;
    tenant := NULL; scope := NULL; key := NULL; fence := NULL; answer := NULL; decided := NULL; reason := NULL;
    next := onward;
    RETURN NEXT;
END $$;
