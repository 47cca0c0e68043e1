-- SPDX-License-Identifier: PostgreSQL
-- once._where_is(tenant, scope, key, bucket, fence): says, for the DETAIL of a refusal, what an intent is now, in the archive
-- too, and what fence was offered.
CREATE FUNCTION once._where_is(tenant text, scope text, key text, bucket integer, fence integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT format('the intent is %s under fence %s, the attempt has fence %s', i.state, i.fence, _where_is.fence)
        FROM once.intent AS i
                      WHERE i.tenant = _where_is.tenant COLLATE "C" AND i.scope = _where_is.scope COLLATE "C"
                        AND i.key = _where_is.key COLLATE "C" AND i.bucket = _where_is.bucket),
                    (SELECT format('the intent is %s under fence %s, its day is retired; the attempt has fence %s', a.state, a.fence,
                                   _where_is.fence)
                       FROM once._archived(_where_is.tenant, _where_is.scope, _where_is.key, _where_is.bucket) AS a
                      WHERE a.state IS NOT NULL),
                            'there is no such intent')
$$;
