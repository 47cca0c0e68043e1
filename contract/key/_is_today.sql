-- SPDX-License-Identifier: PostgreSQL
-- once._is_today(bucket): once._is_open, for a key of once._today(): whether its day is that one still, has begun by the clock, too,
-- and has its partition. To be asked after the look-up, as that is. Inlined, and the table's name is a constant.
CREATE FUNCTION once._is_today(bucket integer) RETURNS boolean LANGUAGE sql AS $$
    SELECT bucket = once._today() AND clock_timestamp() >= to_timestamp(once._today() * 86400::double precision)
       AND to_regclass('once.intent_d' || once._today()::text) IS NOT NULL
$$;
