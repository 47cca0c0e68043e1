-- SPDX-License-Identifier: PostgreSQL
-- once._set_today(day): makes once._today() return this day. The caller holds the lock under which partitions are created, so only one
-- session at a time replaces the function. Only forwards: a session that finds the same day before and after a look-up knows that the day
-- did not change in between.
CREATE FUNCTION once._set_today(day integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._execute_ddl(format('CREATE OR REPLACE FUNCTION once._today() RETURNS integer LANGUAGE sql STABLE PARALLEL SAFE AS %L',
        'SELECT ' || day));
END $$;
