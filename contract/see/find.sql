-- SPDX-License-Identifier: PostgreSQL
-- once.find(tenant, scope, state, result_type, result_id, event, trace, owner, since, until, take): finds intents, the newest first, at
-- most take, including archived ones. Each argument narrows the search; NULL does not. event: the id of an event that the intent emitted;
-- trace: a traceparent, or the trace id in it, of the intent or of one of its events; since and until: when it was created. With an event
-- the intent is looked up; all other searches read the tables. Raises 22023 for an unknown state or an invalid trace.
CREATE FUNCTION once.find(tenant text DEFAULT NULL, scope text DEFAULT NULL, state text DEFAULT NULL, result_type text DEFAULT NULL,
    result_id text DEFAULT NULL, event uuid DEFAULT NULL, trace text DEFAULT NULL, owner text DEFAULT NULL,
    since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL, take integer DEFAULT 100)
RETURNS TABLE (tenant text, scope text, key text, state text, verdict text, fence integer, attempts integer, owner text,
    created_at timestamptz, updated_at timestamptz, lease_until timestamptz, result_type text, result_id text, traceparent text,
    archived boolean) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.tenant, f.scope, f.key, f.state, f.verdict, f.fence, f.attempts, f.owner, f.created_at, f.updated_at, f.lease_until,
           f.result_type, f.result_id, f.traceparent, f.archived
      FROM once._find($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS f
$$;
