-- SPDX-License-Identifier: PostgreSQL
-- once.resolve_many(scope, as_state, reason, outcome..., tenant, error, since, until, dry_run, take, after): once.resolve for all intents
-- of a scope that are in doubt, in parts: at most take in a call, for about a quarter of a second. Narrow it by tenant (NULL: all), by
-- error (the error_code they were put in doubt with), and by since and until: an intent matches if it was first tried since and was in
-- doubt before until, so that all its attempts lie between. All get the same outcome. An intent that is decided or reported meanwhile is
-- skipped. A dry run counts and changes nothing. Returns a row for each error among them, or one row if there are no intents; next is the
-- same in each: pass it as after in the next transaction; NULL means done. A decided intent is no longer in doubt, so after an
-- interruption just start again. Raises P4070 for a missing reason or an unknown state, 22023, P4060, P4000, P4003.
CREATE FUNCTION once.resolve_many(scope text, as_state text, reason text, response_status integer DEFAULT NULL,
    response_text text DEFAULT NULL, response_json jsonb DEFAULT NULL, response_body anynonarray DEFAULT NULL::bytea,
    response_headers jsonb DEFAULT NULL, error_code text DEFAULT NULL, error_message text DEFAULT NULL, tenant text DEFAULT NULL,
    error text DEFAULT NULL, since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL, dry_run boolean DEFAULT false,
    take integer DEFAULT 100, after text DEFAULT NULL) RETURNS TABLE (met text, decided bigint, skipped bigint, next text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '250 milliseconds';
    outcome once.outcome;
    doubt record;
    done boolean;
    errors text[] := '{}';
    dones boolean[] := '{}';
    onward text;
BEGIN
    IF pg_typeof(response_body) <> 'bytea'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, scope, NULL, pg_typeof(response_body));
    END IF;
    PERFORM once._authorise(tenant);        -- NULL, all tenants: for roles that are not bound
    IF scope IS NULL OR length(scope) NOT BETWEEN 1 AND 255 THEN
        PERFORM once._refuse('P4000', tenant, scope, NULL);
    ELSIF (btrim(reason) <> '') IS NOT TRUE THEN
        PERFORM once._refuse('P4070', tenant, scope, NULL, 'the reason is missing');
    ELSIF (as_state IN ('succeeded', 'failed_retryable', 'failed_final')) IS NOT TRUE THEN
        PERFORM once._refuse('P4070', tenant, scope, NULL,
            format('as_state=%s: one of succeeded, failed_retryable, failed_final', quote_nullable(as_state)));
    END IF;
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        response_body := once._body(tenant, scope, NULL, response_text, response_json, response_body);
    END IF;
    outcome := ROW(response_status, response_body, response_headers, NULL, NULL, left(error_code, 255), left(error_message, 4096));
    PERFORM once._check_outcome(tenant, scope, NULL, outcome);
    FOR doubt IN SELECT d.* FROM once._doubtful(tenant, scope, error, since, until,
            least(greatest(coalesce(take, 100), 1), 1000), after) AS d LOOP
        onward := doubt.next;
        EXIT WHEN doubt.source IS NULL;
        CONTINUE WHEN once._serves((doubt.stored).tenant) IS NOT TRUE;
        done := dry_run IS TRUE;
        IF NOT done AND pg_try_advisory_xact_lock(once._lock_id((doubt.stored).tenant, scope, (doubt.stored).key)) THEN
            done := once._decide(doubt.source, doubt.stored, as_state::once.state, reason, 'resolve', outcome);
        END IF;
        errors := array_append(errors, (doubt.stored).error_code::text);
        dones := array_append(dones, done);
        EXIT WHEN clock_timestamp() > deadline;
    END LOOP;
    RETURN QUERY SELECT u.error, count(*) FILTER (WHERE u.done), count(*) FILTER (WHERE NOT u.done), onward
                   FROM unnest(errors, dones) AS u (error, done) GROUP BY u.error ORDER BY u.error;
    IF NOT FOUND THEN
        RETURN QUERY SELECT NULL::text, 0::bigint, 0::bigint, onward;
    END IF;
END $$;
