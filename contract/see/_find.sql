-- SPDX-License-Identifier: PostgreSQL
-- once._find(...): once.find, with parameter names that differ from those of the columns.
CREATE FUNCTION once._find(of_tenant text, of_scope text, of_state text, of_type text, of_result text, of_event uuid, of_trace text,
    of_owner text, since timestamptz, until timestamptz, take integer)
RETURNS TABLE (tenant text, scope text, key text, state text, verdict text, fence integer, attempts integer, owner text,
    created_at timestamptz, updated_at timestamptz, lease_until timestamptz, result_type text, result_id text, traceparent text,
    archived boolean) LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now timestamptz := clock_timestamp();
    trace_id text;
    names text[];       -- of the intents that an event or a trace has led to: their tenants, scopes and keys
    scopes text[];
    keys text[];
BEGIN
    PERFORM once._authorise(of_tenant);     -- NULL, all tenants: for roles that are not bound
    IF of_state <> ALL (enum_range(NULL::once.state)::text[]) OR (take >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: unknown state, or take is NULL: %s',
            quote_nullable(left(of_state, 80))),
            HINT = 'state is one of ' || array_to_string(enum_range(NULL::once.state), ', ')
            || '; NULL for all.';
    END IF;
    IF of_trace IS NOT NULL THEN
        trace_id := CASE WHEN of_trace ~ '^[0-9a-f]{32}$' THEN of_trace ELSE substr(once._trace(of_trace), 4, 32) END;
        IF trace_id IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: trace is neither a traceparent nor a trace id',
                DETAIL = format('trace=%s', quote_literal(left(of_trace, 80))),
                HINT = 'A trace id is 32 hexadecimal digits in lower case; a traceparent is 00-<trace id>-<16 digits>-<2 digits>.';
        END IF;
    END IF;
    IF of_event IS NOT NULL OR trace_id IS NOT NULL THEN
        SELECT array_agg(o.tenant), array_agg(o.scope), array_agg(o.key) INTO names, scopes, keys
          FROM (SELECT DISTINCT e.tenant, e.scope, e.key FROM once.outbox AS e
                 WHERE e.key IS NOT NULL AND (of_event IS NULL OR e.event_id = of_event)
                   AND (trace_id IS NULL OR substr(e.traceparent, 4, 32) = trace_id COLLATE "C")
                UNION
                SELECT e.tenant, e.scope, e.key FROM once.delayed_event AS e
                 WHERE e.key IS NOT NULL AND (of_event IS NULL OR e.event_id = of_event)
                   AND (trace_id IS NULL OR substr(e.traceparent, 4, 32) = trace_id COLLATE "C")) AS o;
    END IF;
    IF of_event IS NOT NULL THEN
        RETURN QUERY
        SELECT f.* FROM unnest(names, scopes, keys) AS u (tenant, scope, key)
         CROSS JOIN LATERAL once._find_among(u.tenant, u.scope, u.key, now) AS f
         WHERE (of_tenant IS NULL OR f.tenant = of_tenant COLLATE "C") AND (of_scope IS NULL OR f.scope = of_scope COLLATE "C")
           AND (of_state IS NULL OR f.state = of_state COLLATE "C") AND (of_type IS NULL OR f.result_type = of_type COLLATE "C")
           AND (of_result IS NULL OR f.result_id = of_result COLLATE "C") AND (of_owner IS NULL OR f.owner = of_owner COLLATE "C")
           AND (since IS NULL OR f.created_at >= since) AND (until IS NULL OR f.created_at < until)
         ORDER BY f.created_at DESC, f.tenant, f.scope, f.key LIMIT take;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT f.tenant::text, f.scope::text, f.key::text, f.state::text,
           once._verdict(true, f.state, f.lease_until, now, 0, NULL, 'takeover'), f.fence, f.attempts, f.owner::text,
           f.created_at, f.updated_at, f.lease_until, f.result_type::text, f.result_id::text, f.traceparent::text, f.archived
      FROM (SELECT i.tenant, i.scope, i.key, i.state, i.fence, i.attempts, i.owner, i.created_at, i.updated_at, i.lease_until,
                   i.result_type, i.result_id, i.traceparent, false AS archived FROM once.intent AS i
             UNION ALL
            SELECT a.tenant, a.scope, a.key, a.state, a.fence, a.attempts, a.owner, a.created_at, a.updated_at, a.lease_until,
                   a.result_type, a.result_id, a.traceparent, true FROM once.archive AS a) AS f
     WHERE (of_tenant IS NULL OR f.tenant = of_tenant COLLATE "C") AND (of_scope IS NULL OR f.scope = of_scope COLLATE "C")
       AND (of_state IS NULL OR f.state = of_state::once.state) AND (of_type IS NULL OR f.result_type = of_type COLLATE "C")
       AND (of_result IS NULL OR f.result_id = of_result COLLATE "C") AND (of_owner IS NULL OR f.owner = of_owner COLLATE "C")
       AND (since IS NULL OR f.created_at >= since) AND (until IS NULL OR f.created_at < until)
       AND (trace_id IS NULL OR substr(f.traceparent, 4, 32) = trace_id COLLATE "C"
            OR (f.tenant, f.scope, f.key) IN (SELECT u.tenant COLLATE "C", u.scope COLLATE "C", u.key COLLATE "C"
                                                FROM unnest(names, scopes, keys) AS u (tenant, scope, key)))
     ORDER BY f.created_at DESC, f.tenant, f.scope, f.key LIMIT take;
END $$;
