-- SPDX-License-Identifier: PostgreSQL
-- once._first_fence(): the fence of a new intent of bucket 0. An earlier intent with its key may have been deleted. So the fence is above
-- every fence that was deleted with an intent of that bucket (once._keep_purge), and a late report of an earlier attempt never finds its
-- own fence. A UUIDv7 key cannot be used again once its day is retired: such an intent begins at 1, without a look-up. Call it while you
-- hold the intent's advisory lock: the purge holds that lock until its deletion is committed. A sequence, because no snapshot hides its
-- value: a transaction above READ COMMITTED may be older than the purge. Inlined.
CREATE FUNCTION once._first_fence() RETURNS integer LANGUAGE sql AS $$
    SELECT coalesce(pg_sequence_last_value('once.fence_floor_seq'), 0)::integer + 1
$$;
