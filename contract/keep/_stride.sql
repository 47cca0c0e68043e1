-- SPDX-License-Identifier: PostgreSQL
-- once._stride(): how many blocks the keeper reads in one statement; between statements it checks the time that its part of work has
-- taken.
CREATE FUNCTION once._stride() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN current_setting('server_version_num')::integer >= 140000 THEN 256 ELSE 32 END::bigint
$$;
