-- SPDX-License-Identifier: PostgreSQL
-- once._steady_now(): the time by which a keeper decides what is past: that of the reading that was judged when its part of work began
-- (once._clock stores one a second). If the clock jumped between that reading and its use, an unjudged time could delete rows.
CREATE FUNCTION once._steady_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT least(clock_timestamp(), (SELECT c.read_at + interval '1 second' FROM once.clock AS c WHERE c.only_row))
$$;
