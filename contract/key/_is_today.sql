-- SPDX-License-Identifier: PostgreSQL
-- once._is_today(bucket): once._is_open for a key of once._today(): whether that is still the day, has also begun by the clock, and has
-- its partition. Call it after the look-up, like once._is_open. Inlined, with the table's name as a constant.
CREATE FUNCTION once._is_today(bucket integer) RETURNS boolean LANGUAGE sql AS $$
    SELECT bucket = once._today() AND clock_timestamp() >= to_timestamp(once._today() * 86400::double precision)
       AND to_regclass('once.intent_d' || once._today()::text) IS NOT NULL
$$;
