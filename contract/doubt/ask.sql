-- SPDX-License-Identifier: PostgreSQL
-- once.ask(scope, key, tenant): once.verify for a page: if the verify function raises, failure contains the error. Only who may call
-- once.verify gets an answer; for others, and for a scope without a verify function, answer is NULL. Raises P4000, P4001, P4003.
CREATE FUNCTION once.ask(scope text, key text, tenant text DEFAULT '', OUT answer text, OUT response_status integer,
    OUT response_body bytea, OUT result_type text, OUT result_id text, OUT failure text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    policy once.scope := once._policy(scope);
    asked record;
BEGIN
    PERFORM once._check(tenant, scope, key, once._bucket(key), E'\\x00000000000000000000000000000000');
    IF policy.verify IS NOT NULL AND has_function_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user::text),
        'once.verify(text, text, text)', 'execute') THEN
        asked := once._ask(policy, tenant, scope, key);
        answer := (asked.verified).answer;
        response_status := (asked.verified).response_status;
        response_body := (asked.verified).response_body;
        result_type := (asked.verified).result_type;
        result_id := (asked.verified).result_id;
        failure := asked.failure;
    END IF;
END $$;
