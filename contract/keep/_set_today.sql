-- SPDX-License-Identifier: PostgreSQL
-- once._set_today(day): makes once._today() return this day. Its caller holds the lock under which partitions are made: a function is
-- replaced by one at a time. Only forwards: whoever finds the same day before and after a look-up knows that it was none other in between.
CREATE FUNCTION once._set_today(day integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION once._today() RETURNS integer LANGUAGE sql STABLE PARALLEL SAFE AS %L', 'SELECT ' || day);
END $$;
