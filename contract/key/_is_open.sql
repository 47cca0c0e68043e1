-- SPDX-License-Identifier: PostgreSQL
-- once._is_open(bucket): whether a UUIDv7 key's day is plainly open for a new intent: it has begun and has its partition. If not,
-- once._open_day finds the reason, creates the partition, or allows the key because of clock skew. Call it after the look-up, which locks
-- the table against once.retire_day. It is a separate function so that no other key and no replay pays for it.
CREATE FUNCTION once._is_open(bucket integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF once._is_new_day() THEN
        PERFORM once._make_days(NULL);
    END IF;
    RETURN bucket <= date_part('epoch', clock_timestamp()) / 86400 AND once._has_day('intent', bucket);
END $$;
