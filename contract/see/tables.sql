-- SPDX-License-Identifier: PostgreSQL
-- The answers to attempts and messages are counted for the whole database, by one sequence for each answer (once._count). A sequence
-- never waits and is not rolled back, so a refusal is counted too. Unlogged if PostgreSQL supports that (15): counting then writes no
-- WAL, and restarts at 0 after a crash.
DO $$
DECLARE
    kind text := CASE WHEN current_setting('server_version_num')::integer >= 150000 THEN 'UNLOGGED' ELSE '' END;
    verdict text;
BEGIN
    FOREACH verdict IN ARRAY ARRAY['new', 'replay', 'mismatch', 'active', 'stale', 'retryable', 'final', 'in_doubt', 'expired',
                                   'process', 'duplicate', 'message_mismatch'] LOOP
        EXECUTE format('CREATE %s SEQUENCE once.counted_%s', kind, verdict);
    END LOOP;
END $$;
