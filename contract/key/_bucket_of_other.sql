-- SPDX-License-Identifier: PostgreSQL
-- once._bucket_of_other(key): the bucket (once._bucket) of a key that is not a UUIDv7 in the usual spelling. once._respelled handles
-- other spellings: LIKE avoids that call for nearly all other keys. Inlined.
CREATE FUNCTION once._bucket_of_other(key text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN octet_length(key) <= 255 AND key COLLATE "C" ~ '^[ -~]+$'
        THEN CASE WHEN key COLLATE "C" LIKE ANY (ARRAY['01%', '{01%', '___:____:01%']) THEN once._respelled(key) ELSE 0 END
        ELSE -1
    END
$$;
