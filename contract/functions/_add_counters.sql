-- SPDX-License-Identifier: PostgreSQL
-- once._add_counters(scope): makes the sequences that count for a scope, where they are missing. A sequence is counted up
-- without waiting for anybody and is not rolled back, so that a refusal is counted too. Unlogged where PostgreSQL can do so
-- (15): counting writes no WAL, and begins anew after a crash.
CREATE FUNCTION once._add_counters(scope text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    kind text := CASE WHEN current_setting('server_version_num')::integer >= 150000 THEN 'UNLOGGED' ELSE '' END;
    counter record;
BEGIN
    FOR counter IN SELECT concat('counted_', v.verdict, '_',
                               to_hex(hashtextextended(scope COLLATE "C", 0))) AS name
                     FROM once._counted() AS v LOOP
        IF to_regclass(format('once.%I', counter.name)) IS NULL THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));   -- one creator at a time
            EXECUTE format('CREATE %s SEQUENCE IF NOT EXISTS once.%I', kind, counter.name);
            PERFORM once._close(format('once.%I', counter.name)::regclass);
            EXECUTE format('COMMENT ON SEQUENCE once.%I IS %L', counter.name, 'counts for the scope ' || quote_literal(scope));
        END IF;
    END LOOP;
END $$;
