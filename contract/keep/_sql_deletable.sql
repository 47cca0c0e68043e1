-- SPDX-License-Identifier: PostgreSQL
-- once._sql_deletable(): the condition, as text, that row i of a finished intent may be deleted: its retention has passed since it was
-- completed, and neither a relay nor a consumer may still bring it back. Only this function decides that. $1 is once._limits(). A claim's
-- own retention is expires_at - created_at: it starts when the outcome is stored, which is not known before. A row that is past the
-- longest retention of all scopes needs no look at its own scope's.
CREATE FUNCTION once._sql_deletable() RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT $sql$((
        (i.completed_at + coalesce(i.expires_at - i.created_at, ($1).longest) <= ($1).now
         OR i.completed_at + coalesce(i.expires_at - i.created_at,
                                      (SELECT p.retention FROM once.scope AS p WHERE p.scope = i.scope),
                                      ($1).retention) <= ($1).now)
        AND i.created_at < ($1).needed
        AND NOT (($1).consumers
                 AND EXISTS (SELECT FROM once.consumer_position AS c
                              WHERE c.consumer = i.scope AND c.tenant = i.tenant AND c."position" <= i.created_at + ($1).skew))
    ) IS TRUE)$sql$
$$;
