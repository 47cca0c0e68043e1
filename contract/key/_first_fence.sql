-- SPDX-License-Identifier: PostgreSQL
-- once._first_fence(): the fence of a new intent of bucket 0. Its key may have had one before that
-- was deleted: so it is above every fence that was deleted with an intent of that bucket
-- (once._keep_purge), and a late report of an earlier attempt meets no fence that it has. A UUIDv7
-- key never comes again once its day is retired: such an intent begins at 1, and nothing is looked
-- up. To be asked while the intent's advisory lock is held: the purge holds it until the deletion
-- is committed. A sequence, since no snapshot hides its value: a transaction above READ COMMITTED
-- may be older than the purge. Inlined.
CREATE FUNCTION once._first_fence() RETURNS integer LANGUAGE sql AS $$
    SELECT coalesce(pg_sequence_last_value('once.fence_floor_seq'), 0)::integer + 1
$$;
