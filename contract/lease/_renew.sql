-- SPDX-License-Identifier: PostgreSQL
-- once._renew(...): one renewal, for arguments that are already checked: the common core of renew and renew_many. An UPDATE of one
-- unindexed column: HOT.
CREATE FUNCTION once._renew(tenant text, scope text, key text, bucket integer, fence integer, lease interval) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    term interval := coalesce(lease, (once._policy(scope)).lease);
BEGIN
    UPDATE once.intent AS i SET lease_until = now + term, updated_at = now
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fence = fence AND i.state = 'processing';
    RETURN FOUND;
END $$;
