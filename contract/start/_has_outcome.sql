-- SPDX-License-Identifier: PostgreSQL
-- once._has_outcome(tenant, scope, key, fence): whether an intent that this transaction started under this fence has an outcome under
-- this fence or a later one.
CREATE FUNCTION once._has_outcome(tenant text, scope text, key text, fence integer) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM FROM once.intent AS i
      WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
        AND i.bucket = bucket AND i.fence >= fence AND i.state <> 'processing';
    RETURN FOUND;
END $$;
