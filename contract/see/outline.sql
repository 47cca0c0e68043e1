-- SPDX-License-Identifier: PostgreSQL
-- once.outline(scope, key, tenant, body): once.story for people who may not see what was answered: without the payloads of its events
-- (payload_bytes says how long they are), and with the stored body only if it is asked for and the caller may call once.peek.
-- may_see_body says whether it may. If nothing is stored it has the verdict of once.peek, and missing is true. Raises P4000, P4001,
-- P4003.
CREATE FUNCTION once.outline(scope text, key text, tenant text DEFAULT '', body boolean DEFAULT false) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    story jsonb := once.story(scope, key, tenant);
    may_see boolean := has_function_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user::text),
        'once.peek(text, text, text)', 'execute');
BEGIN
    IF story IS NULL THEN
        RETURN jsonb_build_object('tenant', tenant, 'scope', scope, 'key', key, 'missing', true,
                                  'verdict', (once._peek(tenant, scope, key, once._bucket(key))).verdict);
    END IF;
    RETURN story || jsonb_build_object('missing', false, 'may_see_body', may_see,
        'response_body', CASE WHEN body AND may_see THEN story->'response_body' END,
        'events', (SELECT coalesce(jsonb_agg(e.one - '{payload,payload_base64}'::text[] || jsonb_build_object('payload_bytes',
                              coalesce((e.one->>'payload_bytes')::integer, octet_length(e.one->>'payload'))) ORDER BY e.nth), '[]')
                     FROM jsonb_array_elements(story->'events') WITH ORDINALITY AS e (one, nth)));
END $$;
