-- SPDX-License-Identifier: PostgreSQL
-- once._event_lock(tenant, scope, key, kind): the 64-bit number of the advisory lock of an intent's event, as once._lock_id makes that of
-- an intent. A transaction that inserts the event holds it, so that no other waits for its INSERT. Inlined.
CREATE FUNCTION once._event_lock(tenant text, scope text, key text, kind text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hash_array_extended(ARRAY[tenant, scope, key, kind] COLLATE "C", 20779)
$$;
