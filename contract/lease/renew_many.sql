-- SPDX-License-Identifier: PostgreSQL
-- once.renew_many(scope[], key[], fence[], lease, tenant): once.renew for many attempts. One row per element, in order; a malformed
-- element is false. Raises only for the batch as a whole (22023, P4003).
CREATE FUNCTION once.renew_many(scope text[], key text[], fence integer[], lease interval DEFAULT NULL, tenant text DEFAULT '')
RETURNS TABLE (ord integer, renewed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0),
    once._length(fence, 0));
    renewed_many boolean[];
    n integer;
BEGIN
    PERFORM once._check_term('lease', lease, '7 days');
    renewed_many := array_fill(false, ARRAY[size]);
    -- In the order of their keys: two batches over the same intents cannot deadlock.
    FOR n IN SELECT u.ord FROM unnest(scope, key) WITH ORDINALITY AS u (scope, key, ord)
              WHERE once._bucket(u.key) >= 0 AND length(u.scope) BETWEEN 1 AND 255
              ORDER BY u.scope COLLATE "C", u.key COLLATE "C", u.ord LOOP
        renewed_many[n] := once._renew(tenant, scope[n], key[n], once._bucket(key[n]), fence[n], lease);
    END LOOP;
    RETURN QUERY SELECT u.ord::integer, u.renewed FROM unnest(renewed_many) WITH ORDINALITY AS u (renewed,
        ord) ORDER BY u.ord;
END $$;
