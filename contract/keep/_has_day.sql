-- SPDX-License-Identifier: PostgreSQL
-- once._has_day(parent, day): whether there is a partition of this day, of 'intent' or 'outbox', that this session can use. The name of a
-- new table is visible an instant before all sessions know that it is a partition: until then an INSERT into its parent would fail with
-- 23514. The session that creates it holds a lock on it for just that time, so the lock that pg_relation_size takes waits for that, and
-- makes this session know of it.
CREATE FUNCTION once._has_day(parent text, day integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN pg_relation_size(to_regclass(concat('once.', parent, '_d', day))) IS NOT NULL;
END $$;
