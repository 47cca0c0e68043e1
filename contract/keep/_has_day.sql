-- SPDX-License-Identifier: PostgreSQL
-- once._has_day(parent, day): whether there is a partition of this day, of 'intent' or 'outbox', to which this session can go. A table
-- shows by its name an instant before all sessions know that it is a partition: an INSERT into its parent would fail with 23514 until
-- then. Whoever made it holds a lock on it for just as long, so the lock that pg_relation_size takes waits for that, and brings the news.
CREATE FUNCTION once._has_day(parent text, day integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN pg_relation_size(to_regclass(concat('once.', parent, '_d', day))) IS NOT NULL;
END $$;
