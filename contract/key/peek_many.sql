-- SPDX-License-Identifier: PostgreSQL
-- once.peek_many(scope[], key[], tenant): once.peek for many intents. One row per element, in order; a malformed
-- element has verdict 'invalid' and its SQLSTATE in error_code. Raises only for the batch as a whole (22023, P4003).
CREATE FUNCTION once.peek_many(scope text[], key text[], tenant text DEFAULT '')
RETURNS TABLE (ord integer, verdict text, fence integer, state text, response_status integer, response_body bytea,
    response_headers jsonb, result_type text, result_id text, error_code text, error_message text, owner text, lease_until timestamptz,
    attempts integer, created_at timestamptz, completed_at timestamptz, traceparent text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0));
    bucket integer;
BEGIN
    FOR n IN 1 .. size LOOP
        ord := n;
        bucket := once._bucket(key[ord]);
        SELECT p.* INTO verdict, fence, state, response_status, response_body, response_headers, result_type, result_id,
            error_code,
                        error_message, owner, lease_until, attempts, created_at, completed_at, traceparent
          FROM once._peek(tenant, scope[ord], key[ord], bucket) AS p
         WHERE bucket >= 0 AND length(scope[ord]) BETWEEN 1 AND 255;
        IF NOT FOUND THEN
            verdict := 'invalid';
            error_code := CASE WHEN (length(scope[ord]) BETWEEN 1 AND 255) IS NOT TRUE THEN 'P4000' ELSE 'P4001' END;
            SELECT e.message INTO error_message FROM once.errors() AS e WHERE e.code = error_code COLLATE "C";
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
