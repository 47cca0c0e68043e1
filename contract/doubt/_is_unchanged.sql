-- SPDX-License-Identifier: PostgreSQL
-- once._is_unchanged(source, stored): whether an intent still is what was read, in once.intent or once.archive. For a caller that has read
-- without its advisory lock and has that now: no verify function is to be asked about an attempt that another has begun meanwhile.
CREATE FUNCTION once._is_unchanged(source regclass, stored once.intent) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    found_it boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE tenant = $1 AND scope = $2 AND key = $3 AND bucket = $4 AND fence = $5
                                    AND state = $6)', source)
       INTO found_it USING stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, stored.state;
    RETURN found_it;
END $$;
