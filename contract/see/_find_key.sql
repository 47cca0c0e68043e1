-- SPDX-License-Identifier: PostgreSQL
-- once._find_key(of_key, of_tenant, of_scope, take, after_scope, after_tenant): the intents with this key, in each scope, by the primary
-- key, in the order of scope and tenant; at most take, after this scope and tenant. Their scopes are found by the same index, from one to
-- the next. Without their bodies and headers.
CREATE FUNCTION once._find_key(of_key text, of_tenant text, of_scope text, take integer, after_scope text, after_tenant text)
RETURNS TABLE (archived boolean, stored once.intent) LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    day integer := once._bucket(of_key);
    leaves text;
BEGIN
    IF (day >= 0) IS NOT TRUE THEN
        RETURN;
    END IF;
    leaves := (SELECT string_agg(format($sql$
        (WITH RECURSIVE s (scope) AS (
             (SELECT i.scope FROM %1$s AS i WHERE i.scope >= coalesce($3, $5) COLLATE "C" ORDER BY i.scope LIMIT 1)
              UNION ALL
             SELECT (SELECT i.scope FROM %1$s AS i WHERE i.scope > s.scope ORDER BY i.scope LIMIT 1) FROM s
              WHERE s.scope IS NOT NULL AND $3 IS NULL)
         SELECT %2$L::boolean AS archived, r.stored, (r.stored).scope, (r.stored).tenant
           FROM s CROSS JOIN LATERAL (
                SELECT %3$s AS stored FROM %1$s AS i
                 WHERE i.scope COLLATE "C" = s.scope AND i.key COLLATE "C" = $1 AND ($2 IS NULL OR i.tenant COLLATE "C" = $2)
                   AND ($3 IS NULL OR i.scope COLLATE "C" = $3)
                   AND (i.scope COLLATE "C" > $5 OR i.tenant COLLATE "C" > $6 OR $6 IS NULL) AND i.bucket = %4$s
                 ORDER BY i.scope, i.key, i.tenant LIMIT $4) AS r
          LIMIT $4)$sql$, c.oid::regclass, c.relname ~ '^archive', once._intent_without_answer(), day), ' UNION ALL ')
      FROM pg_class AS c
     WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'r'
       AND c.relname IN ('intent_d' || day, 'intent_closed_d' || day,
                         'archive_' || to_char(date_trunc('month', date '1970-01-01' + day), 'YYYYMM')));
    IF leaves IS NOT NULL THEN
        RETURN QUERY EXECUTE format('SELECT u.archived, u.stored FROM (%s) AS u ORDER BY u.scope, u.tenant LIMIT $4', leaves)
               USING of_key, of_tenant, of_scope, take, coalesce(after_scope, ''), after_tenant;
    END IF;
END $$;
