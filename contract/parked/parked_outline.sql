-- SPDX-License-Identifier: PostgreSQL
-- once.parked_outline(id, consumer, tenant, scope, key, body): once.parked_show for people who may not see payloads: payload and
-- payload_base64 are there only if they are asked for and the caller may call once.parked_show. payload_bytes is there always, and
-- may_see_body says whether it may. Raises as once.parked_show does.
CREATE FUNCTION once.parked_outline(id text, consumer text DEFAULT NULL, tenant text DEFAULT NULL, scope text DEFAULT NULL,
    key text DEFAULT NULL, body boolean DEFAULT false) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    shown jsonb := once.parked_show(id, consumer, tenant, scope, key);
    may_see boolean := has_function_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user::text),
        'once.parked_show(text, text, text, text, text)', 'execute');
BEGIN
    RETURN CASE WHEN body AND may_see THEN shown ELSE shown - '{payload,payload_base64}'::text[] END
        || jsonb_build_object('may_see_body', may_see, 'payload_bytes',
               coalesce((shown->>'payload_bytes')::integer, octet_length(shown->>'payload')));
END $$;
