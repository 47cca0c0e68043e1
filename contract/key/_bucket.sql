-- SPDX-License-Identifier: PostgreSQL
-- once._bucket(key): the partition that a key belongs to, or -1 if the key is malformed. A UUIDv7 key (RFC 9562) contains its creation
-- time in milliseconds: its bucket is that day, counted from 1970-01-01. A device without a clock makes keys of the first day, which
-- count as the second: 0 is the bucket of any other key of 1 to 255 printable ASCII characters. The bucket depends on the text alone: the
-- same key always falls into the same bucket, so the primary key keeps it unique across partitions without probing the others. So
-- anything before a UUIDv7, such as a prefix, makes it another key.
-- Inlined into its callers. LIKE checks the positions of the four dashes and of the version, NOT LIKE excludes a fifth dash; the regular
-- expressions are single character classes, because a bounded repetition costs 60 us where these cost 0.2. "bit" in quotes is a bit
-- string of any length: bit(48) would truncate it again.
CREATE FUNCTION once._bucket(key text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN key COLLATE "C" LIKE '________-____-7___-____-____________'
             AND key COLLATE "C" NOT LIKE '%-%-%-%-%-%'
             AND key COLLATE "C" !~ '[^0-9a-fA-F-]'
        THEN greatest((('x' || replace(left(key, 13) COLLATE "C", '-', ''))::"bit"::bigint / 86400000)::integer, 1)
        ELSE once._bucket_of_other(key)
    END
$$;
