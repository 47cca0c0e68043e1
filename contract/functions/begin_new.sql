-- SPDX-License-Identifier: PostgreSQL
-- once.begin_new(scope, key, fingerprint, tenant): once.begin for pipelines: returns the fence where the effect may go
-- on, and raises P4020 where begin would return a replay. Sent first in a pipeline, it stops everything that is queued
-- behind it.
CREATE FUNCTION once.begin_new(scope text, key text, fingerprint bytea, tenant text DEFAULT '') RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    begun record := once.begin(scope, key, fingerprint, tenant);
BEGIN
    IF begun.verdict <> 'proceed' THEN
        RAISE EXCEPTION USING ERRCODE = 'P4020', MESSAGE = 'pgonce: the intent is finished and has an outcome',
            DETAIL = format('tenant=%s scope=%s key=%s', quote_nullable(tenant), quote_nullable(scope),
                quote_nullable(key)),
            HINT = 'Read the outcome with once.peek or once.begin.';
    END IF;
    RETURN begun.fence;
END $$;
