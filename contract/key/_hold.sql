-- SPDX-License-Identifier: PostgreSQL
-- once._hold(...): locks the row of an intent before a takeover, if it is still as it was read. False if it has changed, or if another
-- transaction is changing it: a report of the old attempt, which may be part of a longer transaction. Never waits. From here on such a
-- report waits for this transaction, and is refused if this one commits.
CREATE FUNCTION once._hold(tenant text, scope text, key text, bucket integer, fence integer, state once.state,
    lease_until timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    PERFORM FROM once.intent AS i
      WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
        AND i.bucket = bucket AND i.fence = fence AND i.state = state
        AND i.lease_until IS NOT DISTINCT FROM lease_until
        FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END $$;
