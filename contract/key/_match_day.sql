-- SPDX-License-Identifier: PostgreSQL
-- once._match_day(key, day): the day if this UUIDv7 key, in lower case and in the usual groups, was made on it; else NULL. The planner
-- computes the bounds as texts from a constant day, so that only two comparisons remain. Inlined.
CREATE FUNCTION once._match_day(key text, day integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN key COLLATE "C" >= overlay(lpad(to_hex(day * 86400000::bigint), 12, '0') PLACING '-' FROM 9 FOR 0)
                 AND key COLLATE "C" < overlay(lpad(to_hex((day + 1) * 86400000::bigint), 12, '0') PLACING '-' FROM 9 FOR 0)
                THEN day END
$$;
