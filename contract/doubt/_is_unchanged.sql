-- SPDX-License-Identifier: PostgreSQL
-- once._is_unchanged(source, stored): whether an intent, in once.intent or once.archive, is still as it was read. For a caller that read
-- it without its advisory lock and holds the lock now: no verify function may be asked about an attempt that began meanwhile.
CREATE FUNCTION once._is_unchanged(source regclass, stored once.intent) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    found_it boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE tenant = $1 AND scope = $2 AND key = $3 AND bucket = $4 AND fence = $5
                                    AND state = $6)', source)
       INTO found_it USING stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, stored.state;
    RETURN found_it;
END $$;
