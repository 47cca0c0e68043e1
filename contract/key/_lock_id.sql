-- SPDX-License-Identifier: PostgreSQL
-- once._lock_id(tenant, scope, key): the 64-bit number of an intent's advisory lock. A hash of the array and not of the joined texts, so
-- that ('a','bc') and ('ab','c') differ. Two intents with the same number only take turns: the second gets processing_active and tries
-- again. The explicit collation: a hash needs a deterministic one.
CREATE FUNCTION once._lock_id(tenant text, scope text, key text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hash_array_extended(ARRAY[tenant, scope, key] COLLATE "C", 20778)
$$;
