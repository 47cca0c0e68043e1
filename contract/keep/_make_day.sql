-- SPDX-License-Identifier: PostgreSQL
-- once._make_day(parent, day): creates the partition of one day, of 'intent' or 'outbox'. The caller holds the lock under which
-- partitions are created. With ATTACH, because CREATE TABLE ... PARTITION OF would take an ACCESS EXCLUSIVE lock on the parent and stop
-- every claim.
CREATE FUNCTION once._make_day(parent text, day integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    leaf text := format('once.%s_d%s', parent, day);
BEGIN
    IF parent = 'intent' THEN
        PERFORM once._execute_ddl(format('CREATE TABLE %s (LIKE once.intent INCLUDING ALL) WITH (fillfactor = 50)', leaf));
    ELSE
        PERFORM once._execute_ddl(format('CREATE TABLE %s (LIKE once.outbox INCLUDING ALL EXCLUDING IDENTITY)', leaf));
        PERFORM once._execute_ddl(format('ALTER TABLE %s REPLICA IDENTITY FULL', leaf));      -- see once.decision
    END IF;
    PERFORM once._close(leaf::regclass);
    PERFORM once._execute_ddl(format('ALTER TABLE once.%s ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)', parent, leaf, day, day + 1));
    EXECUTE format('COMMENT ON TABLE %s IS %L', leaf,
        CASE parent WHEN 'intent' THEN 'UUIDv7 keys of ' ELSE 'events of ' END || (date '1970-01-01' + day));
END $$;
