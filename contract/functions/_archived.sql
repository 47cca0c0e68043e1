-- SPDX-License-Identifier: PostgreSQL
-- once._archived(tenant, scope, key, bucket): the row of an intent whose day is retired, where it outlived its day;
-- else NULL.
CREATE FUNCTION once._archived(tenant text, scope text, key text,
    bucket integer) RETURNS once.intent LANGUAGE plpgsql STABLE AS $$
DECLARE
    kept once.intent;
BEGIN
    SELECT a.* INTO kept FROM once.archive AS a
     WHERE a.tenant = _archived.tenant COLLATE "C" AND a.scope = _archived.scope COLLATE "C"
       AND a.key = _archived.key COLLATE "C" AND a.bucket = _archived.bucket;
    RETURN kept;
END $$;
