-- SPDX-License-Identifier: PostgreSQL
-- once._respelled(key): the bucket of a key that is not written in groups of 8-4-4-4-12: its day if it is a UUIDv7 without hyphens, with
-- others, in braces, or after urn:uuid:; else 0. It counts as a UUIDv7 by its version, its variant and a date from 2022 to 2039, because
-- 32 hexadecimal digits may also be a hash: one hash in 32,768 passes for a UUIDv7. The dates are fixed, since a key must never change
-- its bucket. COLLATE "C": in Turkish the I of URN:UUID: is another letter.
CREATE FUNCTION once._respelled(key text) RETURNS integer LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    digits text;
BEGIN
    IF octet_length(key) > 45 OR key COLLATE "C" !~* '^(urn:uuid:|[{])?01[89a-f]' THEN
        RETURN 0;
    END IF;
    digits := regexp_replace(lower(key COLLATE "C"), '^urn:uuid:|[{}-]', '', 'g');
    RETURN CASE WHEN digits COLLATE "C" LIKE '____________7___________________' AND digits COLLATE "C" !~ '[^0-9a-f]'
                     AND substr(digits, 17, 1) IN ('8', '9', 'a', 'b')
                THEN ('x' || left(digits, 12))::"bit"::bigint / 86400000 ELSE 0 END;
END $$;
